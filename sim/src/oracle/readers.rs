//! Readers: what each consumer's application got, against what was committed (I5, I8).

use std::collections::BTreeMap;

use super::{Invariant, LogBook, Verdict, broken};
use crate::payload::Mark;
use crate::session::{Delivery, Receipt};

/// What one consumer has got.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// The instance and topic that it reads, once it is known.
    pub(crate) source: Option<(u64, u32)>,
    /// What it must get next.
    pub(crate) next: Option<u64>,
    pub(crate) records: u64,
    pub(crate) gaps: u64,
}

/// Every application's book.
#[derive(Debug, Default)]
pub(crate) struct ReaderBook {
    readers: BTreeMap<usize, Reader>,
    /// Every receipt that a producer's application got: instance, topic and sequence.
    receipts: BTreeMap<Mark, (u64, u32, u64)>,
}

impl ReaderBook {
    pub(crate) fn reader(&mut self, actor: usize) -> &mut Reader {
        self.readers.entry(actor).or_default()
    }

    pub(crate) fn receipts(&self) -> usize {
        self.receipts.len()
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.readers.values().map(|reader| reader.records).sum()
    }

    pub(crate) fn gaps(&self) -> u64 {
        self.readers.values().map(|reader| reader.gaps).sum()
    }

    /// A consumer was told where it starts. `instance` is the one of its session.
    pub(crate) fn subscribed(&mut self, actor: usize, instance: u64, topic: u32, sequence: u64) {
        let reader = self.reader(actor);
        if reader.source.is_none() {
            reader.source = Some((instance, topic));
            // Whoever was told of a restart reads the new log from record 0 on, and hears of what that has lost meanwhile as of
            // any other gap.
            reader.next.get_or_insert(sequence);
        } else if reader.source.is_some_and(|(known, _)| known == instance) {
            reader.source = Some((instance, topic));
        }
    }

    /// A consumer's application got something. `instance` and `topic` are those of its present session.
    pub(crate) fn got(
        &mut self,
        actor: usize,
        present: (u64, Option<u32>),
        delivery: &Delivery,
        log: &LogBook,
    ) -> Verdict {
        let reader = self.readers.entry(actor).or_default();
        match delivery {
            Delivery::Restarted => {
                let (instance, topic) = present;
                if reader.source.is_some_and(|(known, _)| known == instance) {
                    return broken(
                        Invariant::I5,
                        format!("consumer {actor} was told of a restart that did not happen"),
                    );
                }
                // The topic's number in the new instance is known once it has subscribed there.
                reader.source = topic.map(|topic| (instance, topic));
                reader.next = Some(0);
                Ok(())
            }
            Delivery::Gap { from, to } => {
                let Some((instance, topic)) = reader.source else {
                    return broken(Invariant::I5, format!("consumer {actor} has a gap before it has a start"));
                };
                if reader.next != Some(*from) || to <= from || !log.is_gap_end(instance, topic, *to) {
                    let text = format!(
                        "consumer {actor} was told of a gap from {from} to {to}; its next record is {:?}, and what was \
                         dropped does not end there",
                        reader.next
                    );
                    return broken(Invariant::I5, text);
                }
                reader.gaps += 1;
                reader.next = Some(*to);
                Ok(())
            }
            Delivery::Record { sequence, time, payload } => reader.record(actor, *sequence, *time, payload, log),
        }
    }

    /// A producer's application got a receipt.
    pub(crate) fn receipted(&mut self, instance: u64, topic: u32, receipt: &Receipt, log: &LogBook) -> Verdict {
        let Some(sequence) = receipt.sequence else { return Ok(()) };
        let found = log.log(instance, topic).records.get(sequence as usize).copied();
        let right = found.is_some_and(|found| found.mark == receipt.mark && found.time == receipt.time);
        if !right {
            return broken(Invariant::I8, format!("{receipt:?} was given, and committed there is {found:?}"));
        }
        self.receipts.insert(receipt.mark, (instance, topic, sequence));
        Ok(())
    }
}

impl Reader {
    fn record(&mut self, actor: usize, sequence: u64, time: u64, payload: &[u8], log: &LogBook) -> Verdict {
        let Some((instance, topic)) = self.source else {
            return broken(Invariant::I5, format!("consumer {actor} got record {sequence} of no topic"));
        };
        if self.next != Some(sequence) {
            let text = format!("consumer {actor} got record {sequence}, its next one is {:?}", self.next);
            return broken(Invariant::I5, text);
        }
        let Some(found) = log.log(instance, topic).records.get(sequence as usize) else {
            return broken(Invariant::I5, format!("consumer {actor} got record {sequence}, which was never committed"));
        };
        let mark = Mark::read(payload);
        if mark != Some(found.mark) || payload.len() != found.len as usize || time != found.time {
            let text = format!("consumer {actor} got {mark:?} of {time} as record {sequence}, committed is {found:?}");
            return broken(Invariant::I5, text);
        }
        self.next = Some(sequence + 1);
        self.records += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_new_log_has_lost_before_its_reader_came_is_a_gap_that_must_be_told() {
        let (mut readers, log) = (ReaderBook::default(), LogBook::new(65_536, 2));
        let record = Delivery::Record { sequence: 51, time: 0, payload: Vec::new() };
        readers.subscribed(7, 1, 1, 40);
        readers.got(7, (2, None), &Delivery::Restarted, &log).unwrap();
        readers.subscribed(7, 2, 1, 51);
        assert_eq!(readers.reader(7).next, Some(0), "where the broker begins is no news of a gap");
        let failure = readers.got(7, (2, Some(1)), &record, &log).unwrap_err();
        assert_eq!(failure.invariant, Invariant::I5, "{failure}");
    }

    #[test]
    fn a_first_subscription_begins_where_the_broker_says() {
        let mut readers = ReaderBook::default();
        readers.subscribed(7, 1, 1, 40);
        assert_eq!(readers.reader(7).next, Some(40));
    }
}
