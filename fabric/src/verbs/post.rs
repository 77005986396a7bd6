//! Posting: what can be refused at once is, and the rest is queued with what keeps its memory alive.

use std::sync::Arc;

use super::endpoint::{Entry, Job, Phase, Receive};
use super::fabric::VerbsFabric;
use super::failure::failed;
use super::sys::{Buffer, Region};
use super::window::Binding;
use crate::memory::Use;
use crate::{
    Access, DomainId, FabricError, LinkId, LocalSpan, Op, Outcome, SharedSpan, Target, WindowId, Work, WorkError,
};

/// How work will end, if that is known when it is posted.
type Known = Option<Result<Outcome, WorkError>>;

impl VerbsFabric {
    pub(super) fn post_work(&mut self, link: LinkId, op: Op, work: Work) -> Result<(), FabricError> {
        let endpoint = self.endpoints.get(link).ok_or_else(|| FabricError::unknown(link))?;
        let (domain, config) = (endpoint.config.domain, &endpoint.config);
        let (queue, open, depth) = match work {
            Work::Recv { .. } => ("receive", endpoint.receives.len(), config.receive_depth),
            _ => ("send", endpoint.sends.len(), config.send_depth),
        };
        if open >= depth as usize {
            return Err(FabricError::QueueFull { queue, link: link.to_string(), depth });
        }
        match work {
            Work::Recv { into } => {
                let buffer = self.claim(into, domain, Use::Write)?;
                self.expect_endpoint(link).receives.push_back(Receive { op, into, buffer });
            }
            _ => {
                let (job, result) = self.prepare(domain, work)?;
                self.expect_endpoint(link).sends.push_back(Entry { op, job, result });
            }
        }
        self.list(link);
        Ok(())
    }

    /// Has an endpoint's work rung in at the next doorbell.
    pub(super) fn list(&mut self, link: LinkId) {
        let endpoint = self.expect_endpoint(link);
        if endpoint.phase != Phase::Failed && !std::mem::replace(&mut endpoint.listed, true) {
            self.listed.push(link);
        }
    }

    /// Checks work for the send queue and lays claim to what it uses. Gives an error with it if it is already known to fail.
    fn prepare(&mut self, domain: DomainId, work: Work) -> Result<(Job, Known), FabricError> {
        let job = match work {
            Work::Send { from } => {
                if from.len > self.port.message_max {
                    return Err(FabricError::OutOfBounds { span: format!("{from:?}") });
                }
                Job::Send { local: from.local, buffer: self.claim(from, domain, Use::Read)? }
            }
            Work::Read { from, into } => {
                let len = match into {
                    Target::Local(span) => u64::from(span.len),
                    Target::Shared(span) => span.len,
                };
                if len != u64::from(from.len) || from.len > self.read_max() {
                    return Err(FabricError::OutOfBounds { span: format!("{from:?} into {into:?}") });
                }
                match into {
                    Target::Local(span) => {
                        Job::Read { from, local: Some(span.local), buffer: self.claim(span, domain, Use::Write)? }
                    }
                    Target::Shared(span) => {
                        let region = self.region_of(span, domain)?;
                        let address = region.start().wrapping_add(span.offset);
                        if !within(&region, span) {
                            return Err(FabricError::OutOfBounds { span: format!("{span:?}") });
                        }
                        Job::Read { from, local: None, buffer: Buffer::Shared { address, len: from.len, region } }
                    }
                }
            }
            Work::Bind { window, span, access } => return self.prepare_bind(domain, window, span, access),
            Work::Unbind { window } => return self.prepare_unbind(domain, window),
            Work::Recv { .. } => unreachable!("receives have a queue of their own"),
        };
        Ok((job, None))
    }

    fn prepare_bind(
        &mut self,
        domain: DomainId,
        window: WindowId,
        span: SharedSpan,
        access: Access,
    ) -> Result<(Job, Known), FabricError> {
        self.expect_free(window, domain)?;
        let region = self.region_of(span, domain)?;
        let found = self.windows.get_mut(window).ok_or_else(|| FabricError::unknown(window))?;
        // Not every device adds address and length up in enough bits, so it is not asked.
        let fits = within(&region, span);
        let lends = fits && found.is_registration() && access == Access::Read && span.len > 0;
        let own = region.shared().filter(|_| lends).map(|memory| {
            let range = (span.offset, span.len);
            Region::lent(region.domain(), memory, range, access)
                .map_err(|error| ("ibv_reg_mr (to lend a range)", error))
        });
        let (own, refused) = match own.transpose() {
            Ok(own) => (own, None),
            Err(refused) => (None, Some(refused)),
        };
        let binding = Binding { span, access, region, own };
        let announced = found.announce(Some(&binding)).map_err(|error| ("ibv_alloc_mw", error));
        let known = match refused.or(announced.err()) {
            Some((verb, error)) => self.known_refusal(window, verb, error),
            None if fits => None,
            None => Some(Err(WorkError::Bind)),
        };
        Ok((Job::Bind { window, to: Some(binding) }, known))
    }

    fn prepare_unbind(&mut self, domain: DomainId, window: WindowId) -> Result<(Job, Known), FabricError> {
        self.expect_free(window, domain)?;
        self.make_anchor(domain)?;
        let found = self.windows.get_mut(window).ok_or_else(|| FabricError::unknown(window))?;
        let announced = found.announce(None);
        let known = announced.err().and_then(|error| self.known_refusal(window, "ibv_alloc_mw", error));
        Ok((Job::Bind { window, to: None }, known))
    }

    /// The device had nothing left for a bind. That ends one endpoint, in its turn, and not whoever has posted it.
    fn known_refusal(&self, window: WindowId, verb: &'static str, error: std::io::Error) -> Known {
        let error = failed(verb, self.context.name(), error);
        tracing::error!(%window, source = ?std::error::Error::source(&error), "{error}");
        Some(Err(WorkError::Device))
    }

    /// The window is there, of that domain, and has no bind or unbind outstanding.
    fn expect_free(&self, id: WindowId, domain: DomainId) -> Result<(), FabricError> {
        let window = self.windows.get(id).ok_or_else(|| FabricError::unknown(id))?;
        if window.domain != domain {
            return Err(FabricError::DomainMismatch { what: id.to_string() });
        }
        if window.is_busy() {
            return Err(FabricError::WindowBusy { window: id });
        }
        Ok(())
    }

    fn region_of(&self, span: SharedSpan, domain: DomainId) -> Result<Arc<Region>, FabricError> {
        let shared = self.shareds.get(span.shared).ok_or_else(|| FabricError::unknown(span.shared))?;
        if shared.domain != domain {
            return Err(FabricError::DomainMismatch { what: span.shared.to_string() });
        }
        Ok(Arc::clone(&shared.region))
    }

    fn claim(&mut self, span: LocalSpan, domain: DomainId, usage: Use) -> Result<Buffer, FabricError> {
        let (claim, region) = self.locals.claim(span, domain, usage)?;
        Ok(Buffer::Local { claim, region: Arc::clone(region) })
    }
}

/// Whether a span is within the memory of its region.
fn within(region: &Region, span: SharedSpan) -> bool {
    let end = span.offset.checked_add(span.len);
    region.shared().is_some_and(|memory| end.is_some_and(|end| end <= memory.len()))
}
