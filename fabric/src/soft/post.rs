//! Posting: what can be refused at once is, and the rest is queued with what keeps its memory alive.

use super::completion::LocalClaim;
use super::endpoint::{Phase, Receive, flushed_receive};
use super::fabric::SoftFabric;
use super::send_queue::{Job, Landing};
use crate::memory::Use;
use crate::{DomainId, FabricError, LinkId, LocalSpan, Op, Target, Work};

impl SoftFabric {
    pub(super) fn post_work(&mut self, link: LinkId, op: Op, work: Work) -> Result<(), FabricError> {
        let endpoint = self.endpoints.get(link).ok_or_else(|| FabricError::unknown(link))?;
        let domain = endpoint.config.domain;
        let receiving = matches!(work, Work::Recv { .. });
        let (queue, open, depth) = if receiving {
            ("receive", endpoint.receives_open, endpoint.config.receive_depth)
        } else {
            ("send", endpoint.sends_open, endpoint.config.send_depth)
        };
        if open >= depth {
            return Err(FabricError::QueueFull { queue, link: link.to_string(), depth });
        }
        if let Work::Recv { into } = work {
            let slot = self.claim(into, domain, Use::Write)?;
            self.queue_receive(link, Receive { op, into, slot })
        } else {
            let job = self.prepare(domain, work)?;
            self.queue_job(link, op, job)
        }
    }

    /// Checks work for the send queue and lays claim to what it uses.
    fn prepare(&mut self, domain: DomainId, work: Work) -> Result<Job, FabricError> {
        match work {
            Work::Send { from } => Ok(Job::Send { from: self.claim(from, domain, Use::Read)? }),
            Work::Read { from, into } => {
                let len = match into {
                    Target::Local(span) => u64::from(span.len),
                    Target::Shared(span) => span.len,
                };
                if len != u64::from(from.len) || from.len > self.config.read_max {
                    return Err(FabricError::OutOfBounds { span: format!("{from:?} into {into:?}") });
                }
                let into = match into {
                    Target::Local(span) => Landing::Local(self.claim(span, domain, Use::Write)?),
                    Target::Shared(span) => {
                        let region = self.device.region(span.shared)?;
                        if region.domain != domain {
                            return Err(FabricError::DomainMismatch { what: span.shared.to_string() });
                        }
                        if span.offset.checked_add(span.len).is_none_or(|end| end > region.memory.len()) {
                            return Err(FabricError::OutOfBounds { span: format!("{span:?}") });
                        }
                        Landing::Shared { memory: region.memory.clone(), offset: span.offset }
                    }
                };
                Ok(Job::Read { from, into, landed: 0 })
            }
            Work::Bind { window, span, access } => {
                let region_domain = self.device.region(span.shared)?.domain;
                self.expect_window(window, domain)?;
                if region_domain != domain {
                    return Err(FabricError::DomainMismatch { what: span.shared.to_string() });
                }
                self.device.announce(window)?;
                Ok(Job::Bind { window, span, access })
            }
            Work::Unbind { window } => {
                self.expect_window(window, domain)?;
                self.device.announce(window)?;
                Ok(Job::Unbind { window })
            }
            Work::Recv { .. } => unreachable!("receives have a queue of their own"),
        }
    }

    fn expect_window(&self, window: crate::WindowId, domain: DomainId) -> Result<(), FabricError> {
        if self.device.window(window)?.domain != domain {
            return Err(FabricError::DomainMismatch { what: window.to_string() });
        }
        Ok(())
    }

    fn claim(&mut self, span: LocalSpan, domain: DomainId, usage: Use) -> Result<LocalClaim, FabricError> {
        let (claim, ()) = self.locals.claim(span, domain, usage)?;
        Ok(LocalClaim { local: span.local, claim })
    }

    fn queue_receive(&mut self, link: LinkId, receive: Receive) -> Result<(), FabricError> {
        let endpoint = self.endpoints.get_mut(link).ok_or_else(|| FabricError::unknown(link))?;
        endpoint.receives_open += 1;
        if endpoint.phase == Phase::Failed {
            self.completions.push_back(flushed_receive(link, receive));
        } else {
            endpoint.receives.push_back(receive);
        }
        Ok(())
    }

    fn queue_job(&mut self, link: LinkId, op: Op, job: Job) -> Result<(), FabricError> {
        let endpoint = self.endpoints.get_mut(link).ok_or_else(|| FabricError::unknown(link))?;
        endpoint.sends_open += 1;
        endpoint.send.push(op, job);
        if endpoint.phase == Phase::Failed {
            endpoint.send.flush(link, &mut self.completions);
        } else if !endpoint.posted {
            endpoint.posted = true;
            self.posted.push(link);
        }
        Ok(())
    }
}
