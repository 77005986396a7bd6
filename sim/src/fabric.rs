//! A simulated device behind the contract that the machines know.
//!
//! Posting checks what any device checks when it is posted; the rest shows when the `network` executes it.

use std::os::fd::RawFd;

use keyway_fabric::memory::{LocalMemory, Use};
use keyway_fabric::*;

use crate::device::{
    Deed, Local, SimFabric, Window, domain_at, domain_id, link_at, link_id, local_at, local_id, shared_at, window_at,
    window_id,
};
use crate::endpoint::{Endpoint, Receive, Stage, State, flushed};
use crate::shared::SharedMemory;
use crate::{NodeId, Place};

impl Memory for SimFabric {
    fn bytes(&self, span: LocalSpan) -> &[u8] {
        self.local_of(span.local).bytes(span.range())
    }

    fn bytes_mut(&mut self, span: LocalSpan) -> &mut [u8] {
        let local = self.locals.get_mut(local_at(span.local));
        local.unwrap_or_else(|| panic!("{} names no memory", span.local)).memory.bytes_mut(span.range())
    }

    fn copy(&mut self, from: LocalSpan, to: SharedSpan) {
        assert_eq!(u64::from(from.len), to.len, "{from:?} and {to:?} differ in length");
        let bytes = self.bytes(from).to_vec();
        self.write(to, &bytes);
    }

    fn write(&mut self, to: SharedSpan, bytes: &[u8]) {
        let len = bytes.len().min(usize::try_from(to.len).unwrap_or(usize::MAX));
        self.memory_of(to.shared).write(to.offset, &bytes[..len]);
        if self.observed == Some(to.shared) {
            self.deeds.push(Deed::Wrote { span: to.part(0, len as u64), bytes: bytes[..len].to_vec() });
        }
    }

    fn load(&self, from: SharedSpan, bytes: &mut [u8]) {
        assert_eq!(from.len, bytes.len() as u64, "{from:?} is loaded into {} bytes", bytes.len());
        self.memory_of(from.shared).read(from.offset, bytes);
    }

    fn store(&mut self, shared: SharedId, offset: u64, word: u64) {
        self.memory_of(shared).store(offset, word);
        if self.observed == Some(shared) {
            self.deeds.push(Deed::Stored { offset, word });
        }
    }

    fn zero(&mut self, span: SharedSpan) {
        self.memory_of(span.shared).zero(span.offset, span.len);
        if self.observed == Some(span.shared) {
            self.deeds.push(Deed::Wrote { span, bytes: vec![0; span.len as usize] });
        }
    }

    fn crc32c(&self, span: SharedSpan) -> u32 {
        self.memory_of(span.shared).crc32c(span.offset, span.len)
    }

    fn address(&self, span: SharedSpan) -> u64 {
        self.shared_of(span.shared).unwrap_or_else(|| panic!("{} names no memory", span.shared)).base + span.offset
    }

    fn key(&self, window: WindowId) -> Key {
        self.window_of(window).unwrap_or_else(|| panic!("{window} names no window")).posted
    }
}

impl Fabric for SimFabric {
    fn name(&self) -> &str {
        "sim"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            bounds_enforced: self.traits.bounds_enforced,
            read_max: 1 << 30,
            windows_max: self.traits.windows_max,
        }
    }

    fn domain(&mut self) -> Result<DomainId, FabricError> {
        Ok(domain_id(self.domains.insert(())))
    }

    fn local(&mut self, domain: DomainId, slots: u32, size: u32) -> Result<LocalId, FabricError> {
        self.domains.get(domain_at(domain)).ok_or_else(|| FabricError::unknown(domain))?;
        let len = u64::from(slots) * u64::from(size);
        let memory = LocalMemory::new(slots, size, self.waker.clone()).map_err(|source| FabricError::Memory {
            what: "local",
            len,
            source,
        })?;
        Ok(local_id(self.locals.insert(Local { domain, memory })))
    }

    fn shared(&mut self, domain: DomainId, len: u64) -> Result<SharedId, FabricError> {
        self.domains.get(domain_at(domain)).ok_or_else(|| FabricError::unknown(domain))?;
        Ok(self.register(domain, SharedMemory::new(len)))
    }

    fn share(&mut self, domain: DomainId, shared: SharedId) -> Result<SharedId, FabricError> {
        let memory = self.shared_of(shared).ok_or_else(|| FabricError::unknown(shared))?.memory.clone();
        Ok(self.register(domain, memory))
    }

    fn region_key(&self, shared: SharedId) -> Result<Key, FabricError> {
        Ok(self.shared_of(shared).ok_or_else(|| FabricError::unknown(shared))?.key)
    }

    fn window(&mut self, domain: DomainId) -> Result<WindowId, FabricError> {
        self.domains.get(domain_at(domain)).ok_or_else(|| FabricError::unknown(domain))?;
        if self.windows.len() as u32 >= self.traits.windows_max {
            return Err(FabricError::Exhausted { what: "windows", limit: u64::from(self.traits.windows_max) });
        }
        let key = Key(self.index() << 8 | self.rng.u32(0..256));
        Ok(window_id(self.windows.insert(Window { domain, current: key, posted: key, busy: false, binding: None })))
    }

    fn endpoint(&mut self, config: EndpointConfig) -> Result<(LinkId, EndpointAddress), FabricError> {
        self.domains.get(domain_at(config.domain)).ok_or_else(|| FabricError::unknown(config.domain))?;
        let at = self.endpoints.insert(Endpoint::new(LinkId { index: 0, generation: 0 }, config));
        let link = link_id(at);
        self.endpoints.get_mut(at).expect("it was just inserted").link = link;
        let address = [self.node.0, link.index, link.generation].iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok((link, EndpointAddress(address)))
    }

    fn connect(&mut self, link: LinkId, peer: &EndpointAddress) -> Result<(), FabricError> {
        let words: Vec<u32> =
            peer.0.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
        let &[node, index, generation] = words.as_slice() else { return Err(FabricError::Address { fabric: "sim" }) };
        let endpoint = self.endpoints.get_mut(link_at(link)).ok_or_else(|| FabricError::unknown(link))?;
        endpoint.peer = Some(Place { node: NodeId(node), link: LinkId { index, generation } });
        self.rung.push(link);
        Ok(())
    }

    fn needs_stream(&self) -> bool {
        false
    }

    fn attach(&mut self, _link: LinkId, _stream: Stream) -> Result<(), FabricError> {
        Err(FabricError::Unsupported { fabric: "sim", what: "attach a stream" })
    }

    fn post(&mut self, link: LinkId, op: Op, work: Work) -> Result<(), FabricError> {
        let endpoint = self.endpoints.get(link_at(link)).ok_or_else(|| FabricError::unknown(link))?;
        let config = endpoint.config;
        let failed = matches!(endpoint.state, State::Failed(_));
        let full = |queue, depth| FabricError::QueueFull { queue, link: link.to_string(), depth };
        if let Work::Recv { into } = work {
            if endpoint.receives_open >= config.receive_depth {
                return Err(full("receive", config.receive_depth));
            }
            let (_, claim) = self.claim(config.domain, into, Use::Write)?;
            let endpoint = self.endpoints.get_mut(link_at(link)).expect("it was just looked at");
            endpoint.receives_open += 1;
            let receive = Receive { op, into, claim };
            if failed {
                self.ready.push_back(flushed(link, receive));
            } else {
                endpoint.receives.push_back(receive);
            }
            return Ok(());
        }
        if endpoint.sends_open >= config.send_depth {
            return Err(full("send", config.send_depth));
        }
        let claim = match work {
            Work::Send { from } => {
                let (local, claim) = self.claim(config.domain, from, Use::Read)?;
                self.deeds.push(Deed::Sent { link, bytes: claim.bytes().to_vec() });
                Some((local, claim))
            }
            Work::Read { from, into: Target::Local(span) } => {
                if span.len != from.len {
                    return Err(FabricError::OutOfBounds { span: format!("{span:?}") });
                }
                Some(self.claim(config.domain, span, Use::Write)?)
            }
            Work::Read { from, into: Target::Shared(span) } => {
                self.check_shared(span)?;
                if self.shared_of(span.shared).is_some_and(|shared| shared.domain != config.domain) {
                    return Err(FabricError::DomainMismatch { what: span.shared.to_string() });
                }
                if span.len != u64::from(from.len) {
                    return Err(FabricError::OutOfBounds { span: format!("{span:?}") });
                }
                None
            }
            Work::Bind { window, span, .. } => {
                self.announce(config.domain, window, Some(span))?;
                None
            }
            Work::Unbind { window } => {
                self.announce(config.domain, window, None)?;
                None
            }
            Work::Recv { .. } => unreachable!("receives were handled above"),
        };
        let endpoint = self.endpoints.get_mut(link_at(link)).expect("it was just looked at");
        endpoint.push(op, work, claim);
        if failed {
            endpoint.sends.back_mut().expect("it was just pushed").stage = Stage::Over(Err(WorkError::Flushed));
            endpoint.complete(&mut self.ready);
        } else {
            self.rung.push(link);
        }
        Ok(())
    }

    fn submit(&mut self) {}

    fn poll(&mut self, events: &mut Vec<Event>, limit: usize) {
        let before = events.len();
        while events.len() - before < limit {
            let Some(ready) = self.ready.pop_front() else { break };
            self.release(ready.release);
            events.push(ready.event);
        }
        while self.ready.is_empty() && events.len() - before < limit {
            let due = self.endpoints.iter().find(|(_, endpoint)| endpoint.down_due);
            let Some((at, State::Failed(cause))) = due.map(|(at, endpoint)| (at, endpoint.state)) else { return };
            self.endpoints.remove(at);
            events.push(Event::Down { link: link_id(at), cause });
        }
    }

    fn arm(&mut self) {}

    fn fd(&self) -> RawFd {
        self.waker.fd()
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn close(&mut self, link: LinkId) {
        self.closed.push(link);
    }

    fn view(&mut self, span: LocalSpan) -> View {
        let local = self.locals.get_mut(local_at(span.local));
        local.unwrap_or_else(|| panic!("{} names no memory", span.local)).memory.view(span.range())
    }

    fn reset(&mut self, local: LocalId, slot: u32) -> bool {
        self.locals.get_mut(local_at(local)).is_some_and(|local| local.memory.reset(slot))
    }

    fn free_window(&mut self, window: WindowId) -> Result<(), FabricError> {
        let found = *self.window_of(window).ok_or_else(|| FabricError::unknown(window))?;
        if found.busy {
            return Err(FabricError::WindowBusy { window });
        }
        self.windows.remove(window_at(window));
        self.indices_freed.push(found.current.index());
        if found.binding.is_some() {
            self.deeds.push(Deed::Ended { key: found.current });
        }
        Ok(())
    }

    fn free_local(&mut self, local: LocalId) -> Result<(), FabricError> {
        self.locals.remove(local_at(local)).map(|_| ()).ok_or_else(|| FabricError::unknown(local))
    }

    fn free_shared(&mut self, shared: SharedId) -> Result<(), FabricError> {
        let windows: Vec<_> =
            self.bound().filter(|(_, _, span)| span.shared == shared).map(|(window, _, _)| window).collect();
        if !windows.is_empty() {
            return Err(FabricError::Lent { what: shared.to_string(), windows });
        }
        self.shareds.remove(shared_at(shared)).map(|_| ()).ok_or_else(|| FabricError::unknown(shared))
    }

    fn free_domain(&mut self, domain: DomainId) -> Result<(), FabricError> {
        let users = [
            self.locals.iter().filter(|(_, local)| local.domain == domain).count(),
            self.shareds.iter().filter(|(_, shared)| shared.domain == domain).count(),
            self.windows.iter().filter(|(_, window)| window.domain == domain).count(),
            self.endpoints.iter().filter(|(_, endpoint)| endpoint.config.domain == domain).count(),
        ];
        if users != [0; 4] {
            let users = format!("{users:?} local and shared memories, windows and endpoints");
            return Err(FabricError::InUse { what: domain.to_string(), users });
        }
        self.domains.remove(domain_at(domain)).map(|_| ()).ok_or_else(|| FabricError::unknown(domain))
    }

    fn holdings(&self) -> Holdings {
        Holdings {
            domains: self.domains.len(),
            locals: self.locals.len(),
            shareds: self.shareds.len(),
            windows: self.windows.len(),
            bound: self.bound().count(),
            endpoints: self.endpoints.len(),
        }
    }
}
