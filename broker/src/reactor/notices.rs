//! What the core noticed, as log lines: one a second of each kind at most.

use std::fmt;

use keyway_fabric::Time;
use keyway_schema::Code;
use tracing::Level;

use crate::core::Notice;
use crate::throttle::Throttle;

/// The kinds of lines. Nothing in it that a client chose, so that there are few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Line {
    Ended(Code),
    Topic,
    Lapped,
    ForcedRevocation,
    KeyViolation,
    Offer(Code),
}

/// Writes the lines.
#[derive(Debug)]
pub(super) struct NoticeLog {
    lines: Throttle<Line>,
}

impl NoticeLog {
    pub(super) fn new() -> Self {
        Self { lines: Throttle::new() }
    }

    pub(super) fn write(&mut self, now: Time, notice: &Notice) {
        match notice {
            Notice::SessionClosed { id, role, name, refusal, cause } => match refusal {
                Some(refusal) if refusal.code != Code::ShuttingDown => self.line(
                    now,
                    Line::Ended(refusal.code),
                    Level::WARN,
                    format_args!("ended {id} of {role:?} {name:?}: {} ({})", refusal.text, refusal.code),
                ),
                _ => tracing::debug!(session = id.0, ?role, ?name, %cause, "session closed"),
            },
            Notice::TopicCreated { topic, name } => {
                self.line(now, Line::Topic, Level::INFO, format_args!("created topic {name} (number {topic})"));
            }
            Notice::Lapped { id, subscription, topic, sequence } => self.line(
                now,
                Line::Lapped,
                Level::INFO,
                format_args!(
                    "topic {topic} has overtaken subscription {subscription} of {id}: record {sequence} is the oldest \
                     left to it"
                ),
            ),
            Notice::ForcedRevocation { id, subscription, epoch } => self.line(
                now,
                Line::ForcedRevocation,
                Level::WARN,
                format_args!(
                    "revoked the key of epoch {epoch} of subscription {subscription} of {id}: it was not released in time"
                ),
            ),
            Notice::KeyViolation { id } => self.line(
                now,
                Line::KeyViolation,
                Level::WARN,
                format_args!("{id} READ with a dead or foreign key, or out of range"),
            ),
            Notice::OfferFailed { id, topic, number, code } => self.line(
                now,
                Line::Offer(*code),
                Level::WARN,
                format_args!("batch {number} that {id} offered to topic {topic} is left out: {code}"),
            ),
        }
    }

    fn line(&mut self, now: Time, line: Line, level: Level, text: fmt::Arguments<'_>) {
        let Some(pass) = self.lines.pass(line, now) else { return };
        let more = match pass.kept_back {
            0 => String::new(),
            count => format!(" (and {count} more like it)"),
        };
        if level == Level::WARN {
            tracing::warn!("{text}{more}");
        } else {
            tracing::info!("{text}{more}");
        }
    }
}
