//! The batches that a producer has taken on and not yet answered, and their numbers.
//!
//! A batch keeps its [`Ticket`] for its life; its *number* is what the broker knows it by, and belongs to one log. When a topic is
//! opened again, what the broker has already is sent again under its old number and answered with its first receipt;
//! everything else is numbered anew from there, so that a batch that was given up leaves no gap.

use std::collections::VecDeque;

use keyway_schema::batch::seal;

/// The order in which a machine took on a batch, from 1. It names the batch in the machine's outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A batch that is not answered yet.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) ticket: Ticket,
    pub(crate) number: u64,
    pub(crate) records: u32,
    pub(crate) bytes: Vec<u8>,
    /// Whether it was ever sent: then the broker may have it.
    pub(crate) sent: bool,
}

impl Flight {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// The batches, in order. The first `sent` of them were sent in the present session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flights {
    queue: VecDeque<Flight>,
    sent: usize,
    tickets: u64,
    last_number: u64,
}

/// What an opened topic means for the batches taken on before.
#[derive(Debug, Default)]
pub(crate) struct Reopened {
    /// Batches whose fate cannot be known: the broker has forgotten this producer.
    pub(crate) unknown: Vec<Flight>,
    /// The first batch that the broker does not have, if it was sent before.
    pub(crate) refused: Option<Flight>,
}

impl Flights {
    /// Takes on a batch.
    pub(crate) fn push(&mut self, bytes: Vec<u8>, records: u32) -> Ticket {
        self.tickets += 1;
        self.last_number += 1;
        let ticket = Ticket(self.tickets);
        self.queue.push_back(Flight { ticket, number: self.last_number, records, bytes, sent: false });
        ticket
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// How many have yet to be sent in this session.
    pub(crate) fn unsent(&self) -> usize {
        self.queue.len() - self.sent
    }

    /// The next batch to send, sealed for its topic.
    pub(crate) fn next(&mut self, topic: u32, producer: u64) -> Option<&Flight> {
        let flight = self.queue.get_mut(self.sent)?;
        seal(&mut flight.bytes, flight.records, topic, producer, flight.number);
        Some(flight)
    }

    /// The length of the next batch to send.
    pub(crate) fn next_len(&self) -> Option<usize> {
        self.queue.get(self.sent).map(Flight::len)
    }

    /// The next batch was sent. Returns whether it had been sent before.
    pub(crate) fn mark_sent(&mut self) -> bool {
        let again = std::mem::replace(&mut self.queue[self.sent].sent, true);
        self.sent += 1;
        again
    }

    /// Gives up the next batch to send.
    pub(crate) fn drop_next(&mut self) -> Option<Flight> {
        let flight = self.queue.remove(self.sent);
        self.renumber(self.sent);
        flight
    }

    /// The broker has committed `number`. Returns the batch; `Ok(None)` if that was answered before.
    ///
    /// # Errors
    ///
    /// The number of the batch that should have been committed first, or zero if none was sent.
    pub(crate) fn committed(&mut self, number: u64) -> Result<Option<Flight>, u64> {
        let expected = match self.queue.front() {
            Some(first) if self.sent > 0 => first.number,
            _ if number <= self.last_number - self.queue.len() as u64 => return Ok(None),
            _ => return Err(0),
        };
        if number < expected {
            return Ok(None);
        }
        if number > expected {
            return Err(expected);
        }
        self.sent -= 1;
        Ok(self.queue.pop_front())
    }

    /// The session is gone: everything is to be sent again.
    pub(crate) fn session_lost(&mut self) {
        self.sent = 0;
    }

    /// The topic is open again, and the broker has this producer's batches up to `last_number`. `fresh` says that the topic
    /// is a new one; `blame` that the last session ended because of a batch, which must have been the first one it lacks.
    pub(crate) fn reopened(&mut self, last_number: u64, fresh: bool, blame: bool) -> Reopened {
        let mut reopened = Reopened::default();
        let known = self.queue.iter().take_while(|flight| !fresh && flight.number <= last_number).count();
        let forgotten = !fresh && self.queue.front().is_some_and(|first| first.number > last_number + 1);
        if forgotten {
            let sent = self.queue.iter().take_while(|flight| flight.sent).count();
            reopened.unknown = self.queue.drain(..sent).collect();
        } else if blame && self.queue.get(known).is_some_and(|flight| flight.sent) {
            reopened.refused = self.queue.remove(known);
        }
        self.last_number = last_number;
        for flight in self.queue.iter_mut().skip(known) {
            self.last_number += 1;
            flight.number = self.last_number;
        }
        reopened
    }

    /// Numbers the batches from `from` on without a gap.
    fn renumber(&mut self, from: usize) {
        self.last_number -= 1;
        for flight in self.queue.iter_mut().skip(from) {
            flight.number -= 1;
        }
    }

    /// Gives up everything.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Flight> + '_ {
        self.sent = 0;
        self.queue.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keyway_schema::batch::{BATCH_HEADER_LEN, BatchHeader};

    fn flights(count: u64, sent: usize) -> Flights {
        let mut flights = Flights::default();
        for _ in 0..count {
            flights.push(vec![0; BATCH_HEADER_LEN + 8], 1);
        }
        for _ in 0..sent {
            flights.mark_sent();
        }
        flights
    }

    fn numbers(flights: &Flights) -> Vec<(u64, u64)> {
        flights.queue.iter().map(|flight| (flight.ticket.0, flight.number)).collect()
    }

    #[test]
    fn batches_are_numbered_from_one_and_sealed_with_their_number() {
        let mut flights = flights(2, 1);
        let header = BatchHeader::read(&flights.next(7, 9).unwrap().bytes).unwrap();
        assert_eq!((header.number, header.topic, header.producer, header.records), (2, 7, 9, 1));
    }

    #[test]
    fn commits_are_taken_in_order_and_once() {
        let mut flights = flights(3, 2);
        assert_eq!(flights.committed(2).unwrap_err(), 1);
        assert_eq!(flights.committed(1).unwrap().unwrap().ticket, Ticket(1));
        assert!(flights.committed(1).unwrap().is_none(), "a second answer says nothing new");
        assert_eq!(flights.committed(2).unwrap().unwrap().ticket, Ticket(2));
        assert_eq!(flights.committed(3).unwrap_err(), 0, "what was not sent cannot be committed");
        assert!(flights.committed(2).unwrap().is_none());
    }

    #[test]
    fn after_a_reconnect_everything_unanswered_is_sent_again_under_its_number() {
        let mut flights = flights(4, 3);
        flights.committed(1).unwrap();
        flights.session_lost();
        let reopened = flights.reopened(2, false, false);
        assert!(reopened.unknown.is_empty() && reopened.refused.is_none());
        assert_eq!(numbers(&flights), [(2, 2), (3, 3), (4, 4)]);
        assert!(flights.mark_sent() && flights.mark_sent() && !flights.mark_sent());
        assert_eq!(flights.unsent(), 0);
    }

    #[test]
    fn a_new_log_begins_with_number_one() {
        let mut flights = flights(5, 4);
        flights.committed(1).unwrap();
        flights.committed(2).unwrap();
        flights.session_lost();
        let reopened = flights.reopened(0, true, false);
        assert!(reopened.unknown.is_empty());
        assert_eq!(numbers(&flights), [(3, 1), (4, 2), (5, 3)]);
        assert_eq!(flights.push(vec![0; 72], 1), Ticket(6));
        assert_eq!(numbers(&flights).last(), Some(&(6, 4)));
    }

    #[test]
    fn a_producer_that_was_forgotten_does_not_send_again_what_may_be_there() {
        let mut flights = flights(4, 3);
        flights.committed(1).unwrap();
        flights.session_lost();
        let unknown: Vec<u64> = flights.reopened(0, false, false).unknown.iter().map(|lost| lost.ticket.0).collect();
        assert_eq!(unknown, [2, 3]);
        assert_eq!(numbers(&flights), [(4, 1)]);
    }

    #[test]
    fn the_batch_that_ended_a_session_is_given_up_and_leaves_no_gap() {
        let mut flights = flights(4, 3);
        flights.session_lost();
        let refused = flights.reopened(1, false, true).refused.unwrap();
        assert_eq!(refused.ticket, Ticket(2));
        assert_eq!(numbers(&flights), [(1, 1), (3, 2), (4, 3)]);
    }

    #[test]
    fn a_batch_that_is_given_up_before_it_is_sent_leaves_no_gap() {
        let mut flights = flights(3, 1);
        assert_eq!(flights.drop_next().unwrap().ticket, Ticket(2));
        assert_eq!(numbers(&flights), [(1, 1), (3, 2)]);
        assert_eq!(flights.push(vec![0; 72], 1), Ticket(4));
        assert_eq!(numbers(&flights), [(1, 1), (3, 2), (4, 3)]);
    }
}
