//! A client, two nodes and their servers as a model: what passes between them is a step each, and
//! any step may be lost. One flow; the log is the real one, and so are the journal and the codec.
//!
//! The servers are as nondeterministic as can be: each execution of a request makes another reply,
//! unless it is on a route that is regenerated. TCP is reduced to what matters: a sender keeps what
//! is not acknowledged and sends it again, a receiver takes what is next. The primary's gate lets a
//! segment leave as a whole or not at all, and segments are as long as they can be.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ops::Range;
use std::sync::Arc;

use http::{Limits, Routes, Treatment};
use journal::{Appended, Journal};
use replies::codec::{FlowName, Reader, Record, Writer};
use replies::{Excess, Orders, Plan, Policy, ReplyLog, Why};

/// The one flow.
pub const FLOW: u8 = 1;
const NAME: FlowName =
    FlowName { client: [1; 16], server: [2; 16], client_port: 40_000, server_port: 80 };
/// Near the wrap, so that every longer run crosses it.
pub const IRS: u32 = u32::MAX - 40;
pub const ISS: u32 = u32::MAX - 90;
const SEGMENT_MAX: usize = 64 * 1024;

/// A request, and what its server makes of it.
#[derive(Clone)]
pub struct Exchange {
    pub request: Vec<u8>,
    /// The length of its head.
    head: usize,
    expects_continue: bool,
    reply: Answer,
    /// Every execution makes the same reply.
    fixed: bool,
}

/// How a reply is framed, and the length of its body.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    Length(usize),
    Chunked(usize),
    /// To HEAD: the length is announced and does not come.
    HeadOf(usize),
    NoContent,
    /// The length is known, the connection ends.
    Closing(usize),
    /// It ends with the stream.
    UntilClose(usize),
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let line =
            String::from_utf8_lossy(self.request.split(|&b| b == b'\r').next().unwrap_or(&[]));
        write!(f, "{line} ({} B) -> {:?}", self.request.len(), self.reply)
    }
}

impl Exchange {
    fn new(line: &str, fields: &str, body: &[u8], reply: Answer) -> Self {
        let head = format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        Self {
            request: [head.as_bytes(), body].concat(),
            head: head.len(),
            expects_continue: fields.contains("100-continue"),
            reply,
            fixed: line.starts_with("GET /fixed/"),
        }
    }

    pub fn get(reply: Answer) -> Self {
        Self::new("GET /page", "", b"", reply)
    }

    pub fn head(length: usize) -> Self {
        Self::new("HEAD /page", "", b"", Answer::HeadOf(length))
    }

    pub fn post(body: usize, reply: Answer) -> Self {
        Self::new("POST /buy", &format!("Content-Length: {body}\r\n"), &vec![b'p'; body], reply)
    }

    pub fn chunked_post(body: usize, reply: Answer) -> Self {
        Self::new("POST /up", "Transfer-Encoding: chunked\r\n", &chunked(&vec![b'c'; body]), reply)
    }

    pub fn expecting_post(body: usize, reply: Answer) -> Self {
        let fields = format!("Expect: 100-continue\r\nContent-Length: {body}\r\n");
        Self::new("POST /buy", &fields, &vec![b'e'; body], reply)
    }

    /// Its reply is regenerated.
    pub fn fixed(reply: Answer) -> Self {
        Self::new("GET /fixed/x", "", b"", reply)
    }

    pub fn closes(&self) -> bool {
        matches!(self.reply, Answer::Closing(_) | Answer::UntilClose(_))
    }

    fn answer(&self, execution: usize) -> Vec<u8> {
        let execution = if self.fixed { 0 } else { execution };
        let body = |length: usize| -> Vec<u8> {
            (0..length).map(|i| b'a' + ((i * 7 + i / 251 + execution * 3) % 26) as u8).collect()
        };
        let with = |fields: &str, body: &[u8]| {
            let head = format!("HTTP/1.1 200 OK\r\nX-Execution: {execution}\r\n{fields}\r\n");
            [head.as_bytes(), body].concat()
        };
        let length = |length| format!("Content-Length: {length}\r\n");
        match self.reply {
            Answer::Length(n) => with(&length(n), &body(n)),
            Answer::Chunked(n) => with("Transfer-Encoding: chunked\r\n", &chunked(&body(n))),
            Answer::HeadOf(n) => with(&length(n), b""),
            Answer::NoContent => {
                format!("HTTP/1.1 204 No Content\r\nX-Execution: {execution}\r\n\r\n").into()
            }
            Answer::Closing(n) => with(&(length(n) + "Connection: close\r\n"), &body(n)),
            Answer::UntilClose(n) => with("", &body(n)),
        }
    }
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let mut chunks = Vec::new();
    for chunk in body.chunks(100) {
        chunks.extend(format!("{:x}\r\n", chunk.len()).bytes());
        chunks.extend(chunk);
        chunks.extend(b"\r\n");
    }
    chunks.extend(b"0\r\n\r\n");
    chunks
}

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// One execution of one request.
#[derive(Clone, Debug)]
pub struct Execution {
    pub exchange: usize,
    pub reply: Vec<u8>,
}

/// A server process and its socket: what it has read, what it has written.
#[derive(Debug, Default)]
struct Server {
    /// In the instream: where it began, and how far its TCP has received.
    begin: usize,
    received: usize,
    /// The next exchange to be executed, and whether 100 (Continue) has been sent for it.
    next: usize,
    continued: bool,
    /// Replies that are being written.
    writing: Vec<u8>,
    ending: bool,
    /// What TCP has, from where the server began on.
    written: Vec<u8>,
    ended: bool,
}

/// Where a step is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    Not,
    /// Between client and backup.
    FirstLeg,
    /// Between backup and primary.
    SecondLeg,
}

pub use Lost::{FirstLeg, Not, SecondLeg};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nodes {
    Duplex,
    /// The backup is dead.
    Primary,
    /// The primary is dead.
    Backup,
}

pub struct Pair {
    pub exchanges: Vec<Exchange>,
    policy: Arc<Policy>,
    nodes: Nodes,
    // The client. Offsets in both streams.
    instream: Vec<u8>,
    client_sent: usize,
    /// What the client knows to have been received.
    client_una: usize,
    pub received: Vec<u8>,
    pub fin_received: bool,
    // The primary.
    server: Server,
    /// What the client has acknowledged, as far as the server's TCP knows.
    server_una: usize,
    /// The released edge, FIN included; `None` is open.
    edge: Option<usize>,
    /// Written bytes that the backup has, FIN included.
    shipped: usize,
    skipped_to: usize,
    // The backup.
    pub journal: Journal<u8>,
    pub log: ReplyLog<u8>,
    /// What the client has acknowledged, as far as the backup knows, FIN included.
    backup_una: usize,
    reader: Reader,
    /// Orders that have not arrived.
    orders: Vec<Orders>,
    // After a takeover: the flow's outstream from `una` on is the log and then the new server's.
    taken_at: usize,
    from_log: Vec<u8>,
    swallow: usize,
    // The application's own log.
    pub executions: Vec<Execution>,
    /// How many exchanges had their replies logged when the primary died.
    pub logged_at_death: usize,
    pub reset: Option<Why>,
}

pub fn policy(excess: Excess) -> Policy {
    let mut routes = Routes::default();
    routes.add("GET", "/fixed/**", Treatment::Regenerate).unwrap();
    Policy {
        routes,
        limits: Limits { head_bytes: 1024, ..Limits::default() },
        flow_bytes: 4 << 20,
        reply_bytes: 3000,
        excess,
    }
}

impl Pair {
    pub fn new(mut exchanges: Vec<Exchange>, policy: Policy) -> Self {
        for exchange in &mut exchanges {
            // The operator's promise that goes with the policy.
            let long = exchange.answer(0).len() as u64 > policy.reply_bytes;
            let get = exchange.request.starts_with(b"GET ");
            exchange.fixed |= long && get && policy.excess == Excess::Regenerate;
        }
        let policy = Arc::new(policy);
        let mut journal = Journal::new(64 << 20);
        assert_eq!(journal.open(FLOW, IRS, 64 << 20), journal::Opened::New);
        let mut log = ReplyLog::new(64 << 20);
        assert_eq!(log.open(FLOW, ISS, &policy), journal::Opened::New);
        let mut reader = Reader::default();
        reader.push(Writer::new(0, 1).bytes());
        let hello = Record::Hello { version: replies::codec::VERSION, share: 0, epoch: 1 };
        assert_eq!(reader.next_record(), Ok(Some((hello, &[][..]))));
        Self {
            instream: exchanges.iter().flat_map(|e| e.request.clone()).collect(),
            exchanges,
            policy,
            nodes: Nodes::Duplex,
            client_sent: 0,
            client_una: 0,
            received: Vec::new(),
            fin_received: false,
            server: Server::default(),
            server_una: 0,
            edge: Some(0),
            shipped: 0,
            skipped_to: 0,
            journal,
            log,
            backup_una: 0,
            reader,
            orders: Vec::new(),
            taken_at: 0,
            from_log: Vec::new(),
            swallow: 0,
            executions: Vec::new(),
            logged_at_death: 0,
            reset: None,
        }
    }

    /// Where the requests begin and end in the instream.
    pub fn request(&self, exchange: usize) -> Range<usize> {
        let begin = self.exchanges[..exchange].iter().map(|e| e.request.len()).sum();
        begin..begin + self.exchanges[exchange].request.len()
    }

    // Steps. Each says whether anything came of it.

    /// The first byte that the client has not sent, or, if all is sent, the first one that is not
    /// acknowledged.
    pub fn client_begins(&self) -> usize {
        if self.client_sent < self.client_may_send() { self.client_sent } else { self.client_una }
    }

    /// The client sends new bytes, or again what is not acknowledged.
    pub fn client_sends(&mut self, bytes: Range<usize>, lost: Lost) -> bool {
        let end = bytes.end.min(self.client_may_send());
        let bytes = bytes.start..end;
        if bytes.is_empty() || self.reset.is_some() {
            return false;
        }
        self.client_sent = self.client_sent.max(end);
        if lost == FirstLeg {
            return true;
        }
        if self.nodes != Nodes::Primary {
            self.backup_logs(bytes.clone());
        }
        if lost == SecondLeg && self.nodes == Nodes::Duplex {
            return true;
        }
        if bytes.start <= self.server.received {
            self.server.received = self.server.received.max(end);
            self.execute();
        }
        true
    }

    /// Its server's TCP acknowledges to the client what it has received.
    pub fn server_acks(&mut self, lost: Lost) -> bool {
        let news = self.client_una < self.server.received && self.reset.is_none();
        if news && lost == Not {
            self.client_una = self.server.received;
        }
        news
    }

    /// The server writes, as far as the gate lets it.
    pub fn server_writes(&mut self, most: usize) -> bool {
        let unsent = match self.edge {
            Some(_) => self.server.written.len().saturating_sub(self.received.len()),
            None => 0,
        };
        let hold = self.policy.reply_bytes as usize + self.policy.limits.head_bytes + SEGMENT_MAX;
        let len = most.min(self.server.writing.len()).min(hold.saturating_sub(unsent));
        self.server.written.extend(self.server.writing.drain(..len));
        let ends = self.server.writing.is_empty() && self.server.ending && !self.server.ended;
        self.server.ended |= ends;
        len > 0 || ends
    }

    /// The server has nothing left to write.
    pub fn server_is_done(&self) -> bool {
        self.server.writing.is_empty()
    }

    /// How much of the outstream the primary has sent to the backup.
    pub fn shipped(&self) -> usize {
        self.shipped
    }

    /// The primary sends the backup what was captured, unless that is not needed.
    pub fn primary_ships(&mut self, most: usize, lost: Lost) -> bool {
        let all = self.server.written.len();
        if self.nodes != Nodes::Duplex || self.shipped == all + usize::from(self.server.ended) {
            return false;
        }
        let begin = self.shipped.max(self.skipped_to).min(all);
        let end = all.min(begin.saturating_add(most));
        if begin < self.skipped_to {
            // All of it is skipped; more must be written first.
            return std::mem::replace(&mut self.shipped, begin) < begin;
        }
        let fin = self.server.ended && end == all;
        if lost == Not {
            self.backup_receives(begin..end, fin);
            self.shipped = end + usize::from(fin);
        }
        true
    }

    /// The same again, since the primary does not know that it has arrived.
    pub fn primary_ships_again(&mut self, bytes: Range<usize>) {
        let end = self.server.written.len();
        let fin = self.server.ended && bytes.end == end && self.shipped > end;
        self.backup_receives(bytes, fin);
    }

    /// So is some of it, at random.
    pub fn something_is_shipped_again(&mut self, random: &mut fastrand::Rng) {
        let known = self.shipped.min(self.server.written.len());
        if self.nodes == Nodes::Duplex && known > 0 {
            let begin = random.usize(..known);
            self.primary_ships_again(begin..random.usize(begin..known) + 1);
        }
    }

    /// The oldest order arrives at the primary, or is lost.
    pub fn order_arrives(&mut self, lost: Lost) -> bool {
        if self.nodes != Nodes::Duplex || self.orders.is_empty() {
            return false;
        }
        let order = self.orders.remove(0);
        if lost != Not {
            return true;
        }
        if let Some(seq) = order.release {
            let edge = self.out_offset(seq);
            self.edge = self.edge.map(|old| old.max(edge));
        }
        if let Some(seq) = order.skip {
            self.skipped_to = self.skipped_to.max(self.out_offset(seq));
        }
        if order.open.is_some() {
            self.edge = None;
        }
        true
    }

    /// The backup says again what is released, as the stream of records does.
    pub fn orders_are_repeated(&mut self) -> bool {
        if self.nodes != Nodes::Duplex || self.edge.is_none() || !self.orders.is_empty() {
            return false;
        }
        let Some(seq) = self.log.released(&FLOW) else {
            let open = self.log.why_open(&FLOW);
            self.orders.push(Orders { open, ..Orders::default() });
            return true;
        };
        let news = self.edge.is_some_and(|edge| edge < self.out_offset(seq));
        if news {
            self.orders.push(Orders { release: Some(seq), ..Orders::default() });
        }
        news
    }

    /// The server's TCP sends one segment, the first that the client has not acknowledged; with
    /// `new`, the first that it has not received.
    pub fn server_sends(&mut self, new: bool, lost: Lost) -> bool {
        if self.reset.is_some() {
            return false;
        }
        let from = if new { self.received.len() } else { self.server_una.min(self.received.len()) };
        let (bytes, last) = self.outstream(from);
        let len = bytes.len().min(SEGMENT_MAX);
        let end = from + len;
        let fin = last && len == bytes.len();
        if len == 0 && (!fin || self.fin_received) {
            return false;
        }
        if self.edge.is_some_and(|edge| end + usize::from(fin) > edge) {
            return false;
        }
        let segment = bytes[..len].to_vec();
        if lost == Not {
            let known = self.received.len() - from;
            let again = known.min(len);
            assert_eq!(&segment[..again], &self.received[from..from + again], "a byte changed");
            self.received.extend(&segment[again..]);
            let first_fin = fin && !std::mem::replace(&mut self.fin_received, fin);
            return again < len || first_fin;
        }
        true
    }

    /// The client acknowledges what it has received.
    pub fn client_acks(&mut self, lost: Lost) -> bool {
        let ack = self.received.len() + usize::from(self.fin_received);
        if self.reset.is_some() {
            return false;
        }
        if lost == FirstLeg {
            return self.server_una < ack;
        }
        if self.nodes != Nodes::Primary {
            self.backup_una = ack;
            let orders = self.log.acknowledged(&FLOW, seq(ISS, ack));
            self.ordered(orders);
        }
        if lost == SecondLeg && self.nodes == Nodes::Duplex {
            return self.server_una < ack;
        }
        std::mem::replace(&mut self.server_una, ack) < ack
    }

    // Deaths.

    /// The primary dies; the backup's server goes on.
    pub fn kill_primary(&mut self) {
        assert_eq!(self.nodes, Nodes::Duplex);
        self.nodes = Nodes::Backup;
        self.orders.clear();
        let released = self.out_offset(self.log.released(&FLOW).unwrap_or(seq(ISS, 0)));
        self.logged_at_death = self.replies_written_within(released);
        self.edge = None;
        let wait = matches!(self.log.plan(&FLOW), Some(Plan::WaitForBody { .. }));
        assert!(!wait, "no server of the model answers before its request is whole");
        match self.log.plan(&FLOW).expect("the flow is known") {
            Plan::Adopt { instream, position, logged, swallow } => {
                let position = self.out_offset(position);
                self.begin_from_log(position, logged as usize);
                self.swallow = swallow as usize;
                assert!(swallow == 0 || logged == 0);
                assert_eq!(position + self.swallow, self.taken_at + logged as usize);
                let instream = instream as usize;
                let next = (0..self.exchanges.len()).find(|&i| self.request(i).start == instream);
                let next = next.unwrap_or_else(|| {
                    assert_eq!(instream, self.instream.len(), "a server begins with a request");
                    self.exchanges.len()
                });
                assert!(self.journal.instream(&FLOW).unwrap().begin() <= instream as u64);
                let received = self.journal.instream(&FLOW).unwrap().contiguous_len() as usize;
                self.server = Server { begin: instream, received, next, ..Server::default() };
                self.execute();
            }
            Plan::Finish { position, logged, acknowledged } => {
                let position = self.out_offset(position);
                self.begin_from_log(position, logged as usize);
                assert_eq!(position, self.taken_at + logged as usize - usize::from(acknowledged));
                let next = self.exchanges.len();
                let received = self.instream.len();
                self.server =
                    Server { next, received, ending: true, ended: true, ..Server::default() };
            }
            Plan::WaitForBody { .. } => unreachable!("excluded above"),
            Plan::Reset { why, logged } => {
                self.begin_from_log(self.backup_una + logged as usize, logged as usize);
                let known = (self.received.len() - self.taken_at).min(self.from_log.len());
                let (again, new) = self.from_log.split_at(known);
                assert_eq!(again, &self.received[self.taken_at..self.taken_at + known]);
                self.received.extend(new);
                self.reset = Some(why);
            }
        }
    }

    /// The backup dies; the primary opens everything and is simplex.
    pub fn kill_backup(&mut self) {
        assert_eq!(self.nodes, Nodes::Duplex);
        self.nodes = Nodes::Primary;
        self.orders.clear();
        self.edge = None;
    }

    fn begin_from_log(&mut self, position: usize, logged: usize) {
        self.taken_at = self.backup_una;
        self.from_log = self.log.unacknowledged(&FLOW).concat();
        assert_eq!(self.from_log.len(), logged);
        assert!(position <= self.received.len().max(self.taken_at + logged));
        self.server_una = self.taken_at;
    }

    // Everything, until nothing is left to do.

    /// Lets every step that has something to do happen, without loss. Requests are sent no sooner
    /// than the reply before has been received, unless they are `pipelined`.
    pub fn finish(&mut self, pipelined: bool) {
        for round in 0.. {
            assert!(round < 1_000_000, "it does not come to an end");
            let until = if pipelined { self.instream.len() } else { self.end_of_current() };
            let mut progress = self.client_sends(self.client_una..until, Not)
                && self.client_una < self.server.received;
            progress |= self.server_acks(Not);
            progress |= self.server_writes(usize::MAX);
            while self.primary_ships(SEGMENT_MAX, Not) {
                progress = true;
            }
            progress |= self.orders_are_repeated();
            while self.order_arrives(Not) {
                progress = true;
            }
            while self.server_sends(true, Not) {
                progress = true;
            }
            progress |= self.client_acks(Not);
            if !progress {
                return;
            }
        }
    }

    /// The end of the request that the client waits for, or of the first one.
    pub fn end_of_current(&self) -> usize {
        let answered = self.matched().len();
        self.request(answered.min(self.exchanges.len() - 1)).end
    }

    // Judgement.

    /// Each request got exactly one reply, whole and unmixed, and the last reply's connection ended
    /// if it said so. What was logged was executed once.
    #[track_caller]
    pub fn expect_exactly_one_reply_each(&self) {
        assert_eq!(self.reset, None);
        let replies = self.matched();
        assert_eq!(replies.len(), self.exchanges.len(), "not every request was answered");
        let whole = replies.last().map_or(0, |&(_, end)| end);
        assert_eq!(whole, self.received.len(), "bytes behind the last reply");
        let closes = self.exchanges.last().is_some_and(Exchange::closes);
        assert_eq!(self.fin_received, closes);
        self.expect_no_logged_request_executed_twice();
    }

    /// What was received is the beginning of what should have been.
    #[track_caller]
    pub fn expect_a_clean_prefix(&self) {
        let replies = self.matched();
        let whole = replies.last().map_or(0, |&(_, end)| end);
        let rest = &self.received[whole..];
        let next = replies.len();
        let of_next = self.executions.iter().filter(|e| e.exchange == next);
        let mut begins = of_next.map(|e| e.reply.starts_with(rest));
        assert!(rest.is_empty() || CONTINUE.starts_with(rest) || begins.any(|b| b), "mixed");
        self.expect_no_logged_request_executed_twice();
    }

    #[track_caller]
    fn expect_no_logged_request_executed_twice(&self) {
        for exchange in 0..self.exchanges.len() {
            let count = self.executions.iter().filter(|e| e.exchange == exchange).count();
            assert!(count <= 2, "exchange {exchange} was executed {count} times");
            if exchange < self.logged_at_death && !self.exchanges[exchange].fixed {
                assert_eq!(count, 1, "exchange {exchange} was logged, yet executed again");
            }
        }
    }

    /// How many whole replies the client has.
    pub fn answered(&self) -> usize {
        self.matched().len()
    }

    /// Whether the reply is too long to be held, and may not be regenerated.
    pub fn is_streamed(&self, exchange: usize) -> bool {
        let long = self.exchanges[exchange].answer(0).len() as u64 > self.policy.reply_bytes;
        long && !self.exchanges[exchange].fixed
    }

    pub fn executions_of(&self, exchange: usize) -> usize {
        self.executions.iter().filter(|e| e.exchange == exchange).count()
    }

    /// The whole replies among what was received: the execution, and where each ends.
    fn matched(&self) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut at = 0;
        for exchange in 0..self.exchanges.len() {
            while self.received[at..].starts_with(CONTINUE) {
                at += CONTINUE.len();
            }
            let rest = &self.received[at..];
            let mut of_it = self.executions.iter().enumerate();
            let Some((index, execution)) =
                of_it.find(|(_, e)| e.exchange == exchange && rest.starts_with(&e.reply))
            else {
                break;
            };
            at += execution.reply.len();
            found.push((index, at));
        }
        found
    }

    /// How many replies of the primary end within the first `end` bytes of its outstream.
    fn replies_written_within(&self, end: usize) -> usize {
        let known = self.server.written.len().min(end);
        let mut at = 0;
        for (count, execution) in self.executions.iter().enumerate() {
            while self.server.written[at..].starts_with(CONTINUE) {
                at += CONTINUE.len();
            }
            at += execution.reply.len();
            if at > known {
                return count;
            }
        }
        self.executions.len()
    }

    // The parts.

    fn client_may_send(&self) -> usize {
        // RFC 9110 §10.1.1: the body waits for 100, or for the reply.
        let replied = self.matched();
        let answered = replied.len();
        let mut limit = self.instream.len();
        for exchange in answered..self.exchanges.len() {
            let at = replied.last().map_or(0, |&(_, end)| end);
            let continued = exchange == answered && self.received[at..].starts_with(CONTINUE);
            if self.exchanges[exchange].expects_continue && !continued {
                limit = limit.min(self.request(exchange).start + self.exchanges[exchange].head);
                break;
            }
        }
        limit
    }

    fn backup_logs(&mut self, bytes: Range<usize>) {
        let payload = self.instream[bytes.clone()].to_vec();
        match self.journal.append(&FLOW, seq(IRS, bytes.start), &payload, false) {
            Appended::Stored { .. } | Appended::Duplicate => {}
            other => panic!("the journal says {other:?}"),
        }
        let Some(next) = self.log.instream_next(&FLOW) else { return };
        let new = self.journal.instream(&FLOW).unwrap().chunks_from(next).collect::<Vec<_>>();
        let new = new.concat();
        if !new.is_empty() && self.nodes == Nodes::Duplex {
            let orders = self.log.instream(&FLOW, next, &new);
            self.ordered(orders);
        }
    }

    fn backup_receives(&mut self, bytes: Range<usize>, fin: bool) {
        let mut writer = Writer::default();
        writer.push_output(NAME, seq(ISS, bytes.start), &self.server.written[bytes], fin);
        // Cut anywhere, as a stream is.
        let (front, back) = writer.bytes().split_at(writer.bytes().len() / 3);
        let mut received = Vec::new();
        for part in [front, back] {
            self.reader.push(part);
            while let Some((record, payload)) = self.reader.next_record().unwrap() {
                let Record::Output { flow: NAME, seq, fin } = record else {
                    panic!("{record:?} was not sent")
                };
                received.push((seq, payload.to_vec(), fin));
            }
        }
        for (seq, payload, fin) in received {
            let orders = self.log.outstream(&FLOW, seq, &payload, fin);
            self.ordered(orders);
        }
        if let Some(needed) = self.log.instream_needed_from(&FLOW) {
            self.journal.collect(&FLOW, needed);
        }
    }

    fn ordered(&mut self, orders: Orders) {
        if orders != Orders::default() && self.nodes == Nodes::Duplex {
            self.orders.push(orders);
        }
    }

    fn execute(&mut self) {
        while self.server.next < self.exchanges.len() && !self.server.ending {
            let index = self.server.next;
            let request = self.request(index);
            let exchange = &self.exchanges[index];
            if exchange.expects_continue
                && !self.server.continued
                && self.server.received >= request.start + exchange.head
                && self.server.received < request.end
            {
                self.server.continued = true;
                self.server.writing.extend(CONTINUE);
            }
            if self.server.received < request.end {
                return;
            }
            let reply = exchange.answer(self.executions.len());
            self.server.writing.extend(&reply);
            self.server.ending = exchange.closes();
            self.executions.push(Execution { exchange: index, reply });
            self.server.next += 1;
            self.server.continued = false;
        }
    }

    /// The outstream from `from` on, as far as it is there, and whether it ends there.
    fn outstream(&self, from: usize) -> (Vec<u8>, bool) {
        if self.nodes != Nodes::Backup {
            return (
                self.server.written[from.min(self.server.written.len())..].to_vec(),
                self.server.ended,
            );
        }
        let own = &self.server.written[self.swallow.min(self.server.written.len())..];
        let skip = from - self.taken_at.min(from);
        (self.from_log.iter().chain(own).skip(skip).copied().collect(), self.server.ended)
    }

    fn out_offset(&self, seq: u32) -> usize {
        let near = self.received.len();
        let distance = seq.wrapping_sub(self::seq(ISS, near)) as i32;
        usize::try_from(near as i64 + i64::from(distance)).expect("not in front of the stream")
    }
}

/// The sequence number of a stream's byte at `offset`.
pub fn seq(initial: u32, offset: usize) -> u32 {
    initial.wrapping_add(1).wrapping_add(offset as u32)
}
