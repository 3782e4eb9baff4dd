//! The table of established flows.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::{Iter, Link, MapCore, MapFlags, MapHandle, libbpf_sys};

use crate::skel::types;
use crate::{FlowKey, Share, Switchboard};

/// The C side's `enum flow_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowState {
    /// Logged and relayed; on a promoted node: logged only, until adopted.
    Tracked,
    /// Not protected.
    Simplex,
    /// A child of the listener exists or is about to; segments are logged only.
    Adopting,
    /// Adopted: the client talks to the local socket.
    Open,
    /// A child of the daemon's own listener exists or is about to, into which the daemon writes
    /// logged replies. Segments are logged, and go on to the child.
    Delivering,
}

/// TCP options the two ends agreed on in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowOptions {
    pub window_scale: bool,
    pub sack: bool,
    pub timestamps: bool,
    pub ecn: bool,
}

impl FlowOptions {
    fn of(bits: u8) -> FlowOptions {
        let has = |bit| bits & bit != 0;
        FlowOptions {
            window_scale: has(OPT_WSCALE),
            sack: has(OPT_SACK),
            timestamps: has(OPT_TSTAMP),
            ecn: has(OPT_ECN),
        }
    }
}

/// One flow's entry. Sequence numbers are modulo 2^32 (RFC 9293 §3.4).
#[derive(Clone, Copy)]
pub struct Flow {
    raw: types::flow,
}

/// Where a child begins in both streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Birth {
    /// First sequence number the child expects.
    pub seq: u32,
    /// First sequence number the child sends: the client's position in the outstream.
    pub ack: u32,
    /// Outstream bytes before that position, which the server will repeat.
    pub swallow: u64,
}

impl Flow {
    /// The client's initial sequence number.
    pub fn irs(&self) -> u32 {
        self.raw.irs
    }

    /// The server's initial sequence number.
    pub fn iss(&self) -> u32 {
        self.raw.iss
    }

    /// The client's highest acknowledgement: the next outstream byte it expects.
    pub fn una(&self) -> u32 {
        self.raw.una
    }

    /// End of the highest client segment with payload or FIN that passed this node, FIN included. On a
    /// backup such a segment was logged before this moved.
    pub fn data_max(&self) -> u32 {
        self.raw.data_max
    }

    /// The client's latest window, as it stands in its segments.
    pub fn window(&self) -> u16 {
        self.raw.window as u16
    }

    pub fn service(&self) -> u32 {
        self.raw.service
    }

    /// The first sequence number of the client's that was not relayed, if something was parked until
    /// this instant ([`Switchboard::park_until`](crate::Switchboard::park_until)).
    pub fn parked_from(&self, until_ns: u64) -> Option<u32> {
        // The low half is a name that no other instant of a lifetime is likely to have.
        (until_ns != 0 && self.raw.parked == until_ns as u32).then_some(self.raw.parked_from)
    }

    pub fn state(&self) -> FlowState {
        match self.raw.state.into() {
            types::flow_state::FLOW_TRACKED => FlowState::Tracked,
            types::flow_state::FLOW_ADOPTING => FlowState::Adopting,
            types::flow_state::FLOW_OPEN => FlowState::Open,
            types::flow_state::FLOW_DELIVERING => FlowState::Delivering,
            _ => FlowState::Simplex,
        }
    }

    pub fn options(&self) -> FlowOptions {
        FlowOptions::of(self.raw.options)
    }

    /// TSval and TSecr for a segment forged in the client's name, if the flow uses timestamps.
    /// `now_ms` is CLOCK_BOOTTIME in ms, as the data path reads it.
    ///
    /// An adopted child starts its clock at the TSecr it is born with. That must not run behind
    /// the dead primary's clock, whose latest value this node has not seen: what the client echoed
    /// tells it but for the way through the network, which [`TSVAL_SLACK_MS`] covers. A jump ahead
    /// is harmless: RFC 7323 §5.4 asks for monotony only.
    pub fn timestamps(&self, now_ms: u32) -> Option<(u32, u32)> {
        let clock = now_ms.wrapping_add(self.raw.ts_delta).wrapping_add(TSVAL_SLACK_MS);
        self.options().timestamps.then_some((self.raw.tsval, clock))
    }

    /// First sequence number the child sends.
    pub fn birth_ack(&self) -> u32 {
        self.raw.birth_ack
    }

    /// Has the child reached the accept queue? Not so any more once another one is asked for.
    pub fn is_born(&self) -> bool {
        self.child() != types::child::CHILD_NONE
    }

    fn child(&self) -> types::child {
        types::child(self.raw.child.into())
    }

    /// Outstream bytes the adopted server has yet to repeat.
    pub fn swallow_left(&self) -> u64 {
        self.raw.swallow
    }

    /// Has the server sent its FIN?
    pub fn server_ended(&self) -> bool {
        self.raw.flags & FLOW_SERVER_FIN != 0
    }

    /// For how long no segment of it has passed this node; `now_s` is CLOCK_BOOTTIME in seconds.
    pub fn idle(&self, now_s: u32) -> Duration {
        Duration::from_secs(now_s.wrapping_sub(self.raw.seen_s).into())
    }

    /// Turns a tracked flow into one that is being adopted, with its instream logged up to
    /// `replay_end` (FIN included).
    pub fn adopt(&mut self, replay_end: u32) -> Birth {
        let (ack, swallow) = self.delivered();
        let birth = Birth { seq: self.raw.irs.wrapping_add(1), ack, swallow };
        self.give_birth(types::flow_state::FLOW_ADOPTING, birth, replay_end)
    }

    /// The same, but the server begins to read at `seq` of the instream and to write at `position`
    /// of the outstream, which the client has reached. The instream is logged up to `replay_end`.
    ///
    /// A flow that the daemon has delivered to may be adopted in this way as well. Its child must be
    /// closed by then, so that nothing is acknowledged to the client any more, and afterwards the
    /// log must have been drained, so that `replay_end` is behind all that was acknowledged.
    ///
    /// A `position` more than 4 GiB behind the client's cannot be told.
    pub fn adopt_at(&mut self, seq: u32, position: u32, replay_end: u32) -> Birth {
        let (ack, delivered) = self.delivered();
        let swallow = ack.wrapping_sub(position).into();
        assert!(swallow <= delivered, "the client has reached the position");
        let birth = Birth { seq, ack, swallow };
        self.give_birth(types::flow_state::FLOW_ADOPTING, birth, replay_end)
    }

    /// Turns a tracked flow into one that is delivered: the daemon's child begins behind all that is
    /// logged of the instream, which ends at `seq` (FIN included), and at the client's position.
    pub fn deliver(&mut self, seq: u32) -> Birth {
        let (ack, _) = self.delivered();
        let birth = Birth { seq, ack, swallow: 0 };
        self.give_birth(types::flow_state::FLOW_DELIVERING, birth, seq)
    }

    /// The outstream's first byte that the client lacks, as a sequence number and as a distance from
    /// the first one.
    fn delivered(&self) -> (u32, u64) {
        let first = self.raw.iss.wrapping_add(1);
        let una = self.raw.una;
        // The data path may have moved one of the two and not yet the other when they were read.
        let behind = una.wrapping_sub(first).wrapping_sub(self.raw.acked as u32) as i32;
        let delivered = self
            .raw
            .acked
            .checked_add_signed(behind.into())
            .expect("bytes counted and sequence numbers seen are one position");
        // The client has acknowledged the server's FIN. The child will send its own, so it is born
        // in front of it.
        let fin = self.raw.flags & FLOW_SERVER_FIN != 0;
        match fin && una == self.raw.server_fin.wrapping_add(1) {
            true => (self.raw.server_fin, delivered - 1),
            false => (una, delivered),
        }
    }

    fn give_birth(&mut self, state: types::flow_state, birth: Birth, replay_end: u32) -> Birth {
        self.raw.state = state.0 as u8;
        self.raw.birth_seq = birth.seq;
        self.raw.birth_ack = birth.ack;
        self.raw.child_ack = birth.seq;
        self.raw.child_edge = birth.seq;
        self.raw.snd_max = birth.ack;
        self.raw.child_nxt = birth.ack;
        self.raw.replay_end = replay_end;
        self.raw.swallow = birth.swallow;
        birth
    }

    /// Outstream bytes the client has acknowledged.
    pub fn acked(&self) -> u64 {
        self.raw.acked
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.raw, f)
    }
}

impl From<u8> for types::flow_state {
    fn from(raw: u8) -> Self {
        Self(raw.into())
    }
}

/// By how much an adopted flow's timestamp clock runs ahead of the best estimate, in ms.
const TSVAL_SLACK_MS: u32 = 1000;

const OPT_WSCALE: u8 = 0x01;
const OPT_SACK: u8 = 0x02;
const OPT_TSTAMP: u8 = 0x04;
const OPT_ECN: u8 = 0x08;
const FLOW_SERVER_FIN: u8 = 0x01;
const FLOW_CLIENT_FIN: u8 = 0x02;

/// The kernel's table of flows, or of those in one share. All failures of single entries mean that
/// the entry is gone, which the data path may do at any time; they are told by the return value.
pub struct FlowTable {
    /// All if `None`.
    share: Option<Share>,
    flows: MapHandle,
    watched: MapHandle,
    strays: MapHandle,
    embryos: MapHandle,
    /// The program `change_flow`.
    change: OwnedFd,
    /// The iterator `list_gates`, if there are held services.
    gates: Option<Link>,
    switchboard: Switchboard,
}

/// A connection that passed this backup unprotected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stray {
    pub key: FlowKey,
    /// The client's latest acknowledgement.
    pub una: u32,
}

/// A client's SYN that passed this backup, and that the primary has not answered.
#[derive(Debug, Clone, Copy)]
pub struct Embryo {
    pub key: FlowKey,
    raw: types::embryo,
}

impl Embryo {
    /// The client's initial sequence number.
    pub fn irs(&self) -> u32 {
        self.raw.irs
    }

    /// The window of its SYN, which is never scaled.
    pub fn window(&self) -> u16 {
        self.raw.client_window
    }

    /// Its maximum segment size.
    pub fn mss(&self) -> u16 {
        self.raw.client_mss
    }

    /// What it offers.
    pub fn options(&self) -> FlowOptions {
        FlowOptions::of(self.raw.client_options)
    }

    /// Its window scale, if it offers to scale.
    pub fn wscale(&self) -> Option<u8> {
        self.options().window_scale.then_some(self.raw.client_wscale)
    }

    /// Its timestamp, if it offers timestamps.
    pub fn tsval(&self) -> Option<u32> {
        self.options().timestamps.then_some(self.raw.client_tsval)
    }
}

impl FlowTable {
    pub(crate) fn new(
        [flows, watched, strays, embryos]: [MapHandle; 4],
        change: OwnedFd,
        gates: Option<Link>,
        switchboard: Switchboard,
    ) -> Self {
        Self { share: None, flows, watched, strays, embryos, change, gates, switchboard }
    }

    /// Only the flows of this share are seen, and forgotten, as a whole. Single ones are asked for
    /// by those who know whose they are.
    pub fn of(self, share: Share) -> Self {
        Self { share: Some(share), ..self }
    }

    fn has(&self, key: &FlowKey) -> bool {
        self.share.is_none_or(|share| key.share() == share)
    }

    /// Of the flows in question.
    fn entries<V: Plain + Default>(&self, map: &MapHandle) -> impl Iterator<Item = (FlowKey, V)> {
        entries(map).into_iter().filter(|(key, _)| self.has(key))
    }

    /// Unprotected connections that passed through this node lately.
    pub fn strays(&self) -> Vec<Stray> {
        let over = u32::from(FLOW_SERVER_FIN | FLOW_CLIENT_FIN);
        let known = self.entries::<types::stray>(&self.strays);
        let living = known.filter(|(_, stray)| stray.flags & over != over);
        living.map(|(key, stray)| Stray { key, una: stray.una }).collect()
    }

    /// SYNs of the last `age` that nobody has answered: the primary is dead, and their clients would
    /// ask again after a second. `now_ms`: CLOCK_BOOTTIME, modulo 2^32.
    pub fn unanswered(&self, now_ms: u32, age: Duration) -> Vec<Embryo> {
        let young = |raw: &types::embryo| {
            u128::from(now_ms.wrapping_sub(raw.syn_ms)) <= age.as_millis() && raw.answered == 0
        };
        let known = self.entries::<types::embryo>(&self.embryos);
        known.filter(|(_, raw)| young(raw)).map(|(key, raw)| Embryo { key, raw }).collect()
    }

    /// Forgets a handshake.
    pub fn forget_embryo(&self, key: &FlowKey) -> bool {
        let raw = key.to_raw();
        self.embryos.delete(bytes_of(&raw)).is_ok()
    }

    /// Forgets a connection that passed unprotected.
    pub fn forget_stray(&self, key: &FlowKey) -> bool {
        let raw = key.to_raw();
        self.strays.delete(bytes_of(&raw)).is_ok()
    }

    pub fn get(&self, key: &FlowKey) -> Option<Flow> {
        let raw = key.to_raw();
        let value = self.flows.lookup(bytes_of(&raw), MapFlags::ANY).ok().flatten()?;
        Some(Flow { raw: from_bytes(&value)? })
    }

    /// Lets a flow be adopted as [`Flow::adopt`] or [`Flow::adopt_at`] has prepared it; a child that
    /// it has had is forgotten. False: this connection is over.
    pub fn begin_adoption(&self, key: &FlowKey, flow: &Flow) -> bool {
        assert_eq!(flow.state(), FlowState::Adopting);
        self.change(key, flow)
    }

    /// Lets the daemon deliver to a flow as [`Flow::deliver`] has prepared it. False: this connection
    /// is over.
    pub fn begin_delivery(&self, key: &FlowKey, flow: &Flow) -> bool {
        assert_eq!(flow.state(), FlowState::Delivering);
        self.change(key, flow)
    }

    /// The daemon's child is going to end the connection in the ordinary way: from here on its FIN
    /// or RST is followed, and the flow forgotten with it. False: this connection is over, or is not
    /// being delivered.
    pub fn deliver_to_end(&self, key: &FlowKey) -> bool {
        let Some(mut flow) = self.get(key) else { return false };
        if flow.state() != FlowState::Delivering {
            return false;
        }
        flow.raw.state = types::flow_state::FLOW_OPEN.0 as u8;
        self.change(key, &flow)
    }

    pub fn remove(&self, key: &FlowKey) -> bool {
        let raw = key.to_raw();
        self.flows.delete(bytes_of(&raw)).is_ok()
    }

    /// Marks a flow as no longer protected: it passes unlogged from here on.
    pub fn make_simplex(&self, key: &FlowKey) -> bool {
        let Some(mut flow) = self.get(key) else { return false };
        flow.raw.state = types::flow_state::FLOW_SIMPLEX.0 as u8;
        self.change(key, &flow)
    }

    /// Writes what is the daemon's to decide into the entry, which stays where it is (`change.h`).
    fn change(&self, key: &FlowKey, flow: &Flow) -> bool {
        let mut change = types::flow_change { flow: flow.raw, key: key.to_raw(), pad: 0 };
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
            ctx_in: (&raw mut change).cast(),
            ctx_size_in: size_of_val(&change) as u32,
            ..Default::default()
        };
        // SAFETY: the descriptor is the program's; the context is as large as said, plain data, and
        // outlives the call.
        let result = unsafe {
            libbpf_sys::bpf_prog_test_run_opts(self.change.as_raw_fd(), &raw mut options)
        };
        assert_eq!(result, 0, "a loaded program runs: {}", io::Error::last_os_error());
        options.retval == 1
    }

    /// Takes an adopted socket whose output has been swallowed out of the socket map: its writes
    /// go straight to TCP again. One that has a gate stays.
    pub fn stop_swallowing(&self, key: &FlowKey) -> bool {
        let raw = key.to_raw();
        let held = self.get(key).is_some_and(|flow| flow.child() == types::child::CHILD_HELD);
        !held && self.watched.delete(bytes_of(&raw)).is_ok()
    }

    /// The flows of all sockets that have a gate, open or not, also of such as their server has
    /// closed with output held. One pass over the TCP sockets of the calling thread's network
    /// namespace.
    ///
    /// Whoever has told the data path that there is no backup goes on to open each of them by an
    /// order. The gates hold nothing any more, but TCP would try again only when its probe timer
    /// fires.
    pub fn gated(&self) -> Vec<FlowKey> {
        let Some(gates) = &self.gates else { return Vec::new() };
        let mut keys = Vec::new();
        let pass = Iter::new(gates).map_err(io::Error::other);
        if let Err(error) = pass.and_then(|mut pass| pass.read_to_end(&mut keys)) {
            tracing::warn!(%error, "cannot list all gates: what they held leaves somewhat later");
        }
        let keys = keys.chunks_exact(size_of::<types::flow_key>()).filter_map(from_bytes);
        keys.map(|key| FlowKey::from_raw(&key)).filter(|key| self.has(key)).collect()
    }

    /// Addresses of clients, from a look at so many flows.
    pub fn some_clients(&self, flows: usize) -> Vec<IpAddr> {
        let keys = self.flows.keys().take(flows);
        let known = keys.filter_map(|key| from_bytes::<types::flow_key>(&key));
        let clients: BTreeSet<IpAddr> =
            known.map(|raw| FlowKey::from_raw(&raw).client().ip()).collect();
        clients.into_iter().collect()
    }

    /// A snapshot of the flows. Entries that come or go meanwhile may be missed.
    pub fn snapshot(&self) -> Vec<(FlowKey, Flow)> {
        self.entries(&self.flows).map(|(key, raw)| (key, Flow { raw })).collect()
    }

    /// Forgets the flows.
    pub fn clear(&self) {
        for (key, _) in self.snapshot() {
            self.remove(&key);
        }
        // Handshakes as well: one that completes only now may have sent bytes that nobody logged.
        for map in [&self.strays, &self.embryos] {
            let keys: Vec<types::flow_key> =
                map.keys().filter_map(|key| from_bytes(&key)).collect();
            for key in keys.iter().filter(|key| self.has(&FlowKey::from_raw(key))) {
                // Gone already is what is wanted.
                let _ = map.delete(bytes_of(key));
            }
        }
        if self.share.is_none() {
            self.switchboard.set_flows_forgotten();
        }
    }
}

/// All entries of a table whose keys are flows. Such as come or go meanwhile may be missed.
fn entries<V: Plain + Default>(map: &MapHandle) -> Vec<(FlowKey, V)> {
    const BATCH: usize = 4096;
    assert_eq!(map.value_size() as usize, size_of::<V>(), "values of the map's own type");
    let mut keys = vec![types::flow_key::default(); BATCH];
    let mut values = vec![V::default(); BATCH];
    let mut all = Vec::new();
    // The kernel's position in the table: opaque, no larger than a key.
    let mut position = types::flow_key::default();
    let mut from: *mut types::flow_key = std::ptr::null_mut();
    loop {
        let mut count = BATCH as u32;
        // SAFETY: the descriptor is open; keys and values have room for `count` entries of the
        // map's own types; `from` is null or points to a former answer, which may be the place
        // of the next one.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                from.cast(),
                (&raw mut position).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &mut count,
                std::ptr::null(),
            )
        };
        // A batch may be short without being the last: the kernel does not split a bucket.
        let done = match -result {
            0 => false,
            libc::ENOENT => true,
            libc::EINTR => continue,
            // A bucket larger than the whole batch, or one whose lock the kernel did not get:
            // neither may cost an entry.
            error => {
                let error = io::Error::from_raw_os_error(error);
                tracing::warn!(%error, "cannot read a table in one go; reading it entry by entry");
                return one_by_one(map);
            }
        };
        let found = keys.iter().zip(&values).take(count as usize);
        all.extend(found.map(|(key, value)| (FlowKey::from_raw(key), *value)));
        if done {
            return all;
        }
        from = &raw mut position;
    }
}

/// The same, slower.
fn one_by_one<V: Plain>(map: &MapHandle) -> Vec<(FlowKey, V)> {
    let entry = |key: Vec<u8>| {
        let value = map.lookup(&key, MapFlags::ANY).ok().flatten()?;
        Some((FlowKey::from_raw(&from_bytes(&key)?), from_bytes(&value)?))
    };
    map.keys().filter_map(entry).collect()
}

/// Plain data shared with the data path: `repr(C)`, no padding that matters, any bit pattern valid.
pub(crate) trait Plain: Copy {}
impl Plain for types::flow_key {}
impl Plain for types::flow {}
impl Plain for types::embryo {}
impl Plain for types::service_key {}
impl Plain for types::service {}
impl Plain for types::stray {}

impl Plain for types::record {}
impl Plain for types::output {}

pub(crate) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` types are generated from C structs whose padding is spelled out as fields,
    // so every byte is initialised; the slice borrows the value.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}

fn from_bytes<T: Plain>(bytes: &[u8]) -> Option<T> {
    from_front(bytes).and_then(|(value, rest)| rest.is_empty().then_some(value))
}

/// A value and what follows it.
pub(crate) fn from_front<T: Plain>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (value, rest) = bytes.split_at_checked(size_of::<T>())?;
    // SAFETY: the slice has exactly the size of the type, any bit pattern is a valid `T`, and the
    // read does not assume alignment.
    Some((unsafe { value.as_ptr().cast::<T>().read_unaligned() }, rest))
}
