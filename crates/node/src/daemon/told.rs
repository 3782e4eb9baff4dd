//! What the primary's daemon tells the backup of what servers write: the output ring's records become
//! those of a stream.

use ahash::AHashMap;
use datapath::{FlowKey, Output, REPLY_MAX};
use replies::codec::{Record, Writer};
use takeover::{after, name_of};

/// What was said of a flow.
#[derive(Debug, Default)]
struct Said {
    /// Behind the last byte, or the FIN, that the backup was told of; `None`: it was told of nothing.
    next: Option<u32>,
    /// What was written last, and has not been said yet; no longer than a reply that goes by way of the
    /// backup.
    waits: Option<Written>,
    /// What lies in front of it the backup does not need.
    skip: Option<u32>,
    /// The backup has named it on this stream.
    named: bool,
    /// Its gate is open: nothing more is said of it.
    open: bool,
    /// Something was not captured, and the backup has not opened it yet.
    lost: bool,
    /// It has no gate: nothing will be heard of it once it is open.
    unheld: bool,
}

/// Some that a server wrote: the first one is `seq`.
#[derive(Debug)]
struct Written {
    seq: u32,
    bytes: Vec<u8>,
}

impl Written {
    fn end(&self) -> u32 {
        end_of(self.seq, &self.bytes)
    }
}

fn end_of(seq: u32, bytes: &[u8]) -> u32 {
    // A few MiB at most, far less than half the sequence space.
    seq.wrapping_add(bytes.len() as u32)
}

/// What the ring's records become.
///
/// Most short replies go by way of the backup, and by the next time that the server writes, their client
/// has acknowledged them. So what was written last to each flow waits until the ring has been read to its
/// end: of what turns out to be stable nothing need be said.
#[derive(Default)]
pub struct Told {
    flows: AHashMap<FlowKey, Said>,
    /// All flows of which something waits, and more.
    waiting: Vec<FlowKey>,
    /// What the backup is to be told.
    frames: Writer,
    /// Where streams end of which the server has crashed. The backup does not hear of them if it is
    /// to carry them on.
    crashed: Vec<(FlowKey, u32)>,
    /// It cannot: they have ended.
    kept: bool,
}

impl Told {
    /// What the backup is to be told now.
    pub fn frames(&mut self) -> &mut Writer {
        &mut self.frames
    }

    /// What has not been said by now will not be: the next stream begins with a comparison.
    pub fn begin_anew(&mut self) {
        self.frames = Writer::default();
    }

    /// Nobody else can carry on what servers have left by crashing: it has ended.
    pub fn keep_crashed(&mut self) {
        self.kept = true;
        for (key, seq) in std::mem::take(&mut self.crashed) {
            self.ended(key, seq);
        }
    }

    /// One record of the ring.
    pub fn tell(&mut self, output: &Output, payload: &[u8]) {
        let key = output.flow();
        match *output {
            Output::Bytes { seq, stable, .. } => self.written(key, seq, payload, stable),
            Output::Ended { seq, .. } => self.ended(key, seq),
            Output::Crashed { seq, .. } if self.kept => self.ended(key, seq),
            Output::Crashed { seq, .. } => self.crashed.push((key, seq)),
            // The backup need not be told: its data path logs the end of every flow, in its place among
            // the client's segments, and tells it from a new one with the same addresses.
            Output::Gone { .. } | Output::Aborted { .. } => drop(self.flows.remove(&key)),
            Output::Lost { seq, .. } => self.lost(key, seq),
            // What it writes leaves at once: the backup must know. Its end is not told here.
            Output::Unheld { .. } => {
                self.lost(key, 0);
                self.flows.get_mut(&key).expect("it was lost a moment ago").unheld = true;
            }
            // The servers are rung at, whosever it is.
            Output::Unread { .. } => {}
        }
    }

    fn written(&mut self, key: FlowKey, seq: u32, bytes: &[u8], stable: Option<u32>) {
        let waits = &mut self.flows.entry(key).or_default().waits;
        if let Some(waiting) = waits {
            if stable.is_some_and(|stable| !after(waiting.end(), stable)) {
                waiting.seq = seq;
                waiting.bytes.clear();
            }
            // A head and its body.
            if seq == waiting.end() && waiting.bytes.len() + bytes.len() <= REPLY_MAX {
                waiting.bytes.extend_from_slice(bytes);
                return;
            }
            self.say_what_waits(&key);
        }
        if bytes.len() > REPLY_MAX {
            self.say(key, seq, bytes, false);
            return;
        }
        let waiting = Written { seq, bytes: bytes.to_vec() };
        self.flows.entry(key).or_default().waits = Some(waiting);
        self.waiting.push(key);
    }

    fn ended(&mut self, key: FlowKey, seq: u32) {
        self.say_what_waits(&key);
        self.say(key, seq, &[], true);
    }

    fn lost(&mut self, key: FlowKey, seq: u32) {
        self.say_what_waits(&key);
        self.flows.entry(key).or_default().lost = true;
        self.frames.push(&Record::Lost { flow: name_of(&key), seq });
    }

    /// The ring has been read to its end.
    pub fn say_all_that_waits(&mut self) {
        for key in std::mem::take(&mut self.waiting) {
            self.say_what_waits(&key);
        }
    }

    fn say_what_waits(&mut self, key: &FlowKey) {
        if let Some(waiting) = self.flows.get_mut(key).and_then(|said| said.waits.take()) {
            self.say(*key, waiting.seq, &waiting.bytes, false);
        }
    }

    fn say(&mut self, key: FlowKey, seq: u32, bytes: &[u8], fin: bool) {
        let said = self.flows.entry(key).or_default();
        said.next = Some(end_of(seq, bytes).wrapping_add(fin.into()));
        let needed = said.skip.map_or(0, |skip| {
            let skipped = skip.wrapping_sub(seq) as i32;
            usize::try_from(skipped).unwrap_or(0).min(bytes.len())
        });
        if said.open || (needed == bytes.len() && needed > 0 && !fin) {
            return;
        }
        let (seq, bytes) = (seq.wrapping_add(needed as u32), &bytes[needed..]);
        self.frames.push_output(name_of(&key), seq, bytes, fin);
    }

    /// A stream has begun, and its peer has this flow's output up to `seq`.
    pub fn compare(&mut self, key: FlowKey, seq: u32) {
        // What this node has not read from the ring yet will come.
        let Some(said) = self.flows.get_mut(&key) else { return };
        said.named = true;
        // The backup may have had more of it: whole replies go through it.
        let lacks = said.next.is_some_and(|next| after(next, seq));
        if lacks || said.lost {
            // It was in the old stream. No copy is kept here: the flow is not protected any more.
            self.frames.push(&Record::Lost { flow: name_of(&key), seq });
        }
    }

    /// The peer has named all flows that it knows.
    pub fn compared(&mut self) {
        for (key, said) in &mut self.flows {
            let named = std::mem::take(&mut said.named);
            if !named && !said.open {
                let seq = said.next.unwrap_or_default();
                self.frames.push(&Record::Lost { flow: name_of(key), seq });
            }
        }
    }

    /// The backup does not need what lies in front of `seq`.
    pub fn skip(&mut self, key: &FlowKey, seq: u32) {
        if let Some(said) = self.flows.get_mut(key) {
            said.skip = Some(seq);
        }
    }

    /// The flow's gate is open.
    pub fn opened(&mut self, key: &FlowKey) {
        match self.flows.get_mut(key) {
            Some(said) if said.unheld => drop(self.flows.remove(key)),
            Some(said) => (said.open, said.lost) = (true, false),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use replies::codec::Reader;

    fn flow(client: u16) -> FlowKey {
        FlowKey::new(([192, 0, 2, 1], client).into(), ([192, 0, 2, 100], 80).into())
    }

    /// The server of a flow writes, and what the backup is told.
    #[derive(Default)]
    struct Backup {
        told: Told,
    }

    impl Backup {
        fn write(&mut self, client: u16, seq: u32, bytes: &[u8], stable: Option<u32>) {
            self.told.tell(&Output::Bytes { flow: flow(client), seq, stable }, bytes);
        }

        /// The ring is empty.
        fn is_told(&mut self) -> Vec<(u16, u32, Vec<u8>, bool)> {
            self.told.say_all_that_waits();
            assert!(self.told.flows.values().all(|said| said.waits.is_none()));
            let mut reader = Reader::default();
            reader.push(Writer::new(0, 1).bytes());
            reader.push(self.told.frames().bytes());
            self.told.begin_anew();
            let mut records = Vec::new();
            while let Some((record, payload)) = reader.next_record().expect("well-formed") {
                match record {
                    Record::Hello { .. } => {}
                    Record::Output { flow, seq, fin } => {
                        records.push((flow.client_port, seq, payload.to_vec(), fin));
                    }
                    Record::Lost { flow, seq } => {
                        records.push((flow.client_port, seq, b"lost".to_vec(), false));
                    }
                    other => panic!("{other:?}"),
                }
            }
            records
        }
    }

    #[test]
    fn what_is_stable_is_not_said() {
        let mut backup = Backup::default();
        // Near the end of the sequence space.
        let first = u32::MAX - 3;
        backup.write(1, first, b"first", Some(first));
        backup.write(2, 70, b"other", Some(70));
        backup.write(1, first.wrapping_add(5), b"second", Some(first.wrapping_add(5)));
        backup.write(1, first.wrapping_add(11), b"third", Some(first.wrapping_add(11)));
        let last = (1, first.wrapping_add(11), b"third".to_vec(), false);
        assert_eq!(backup.is_told(), [last, (2, 70, b"other".to_vec(), false)]);
        assert_eq!(backup.is_told(), []);
    }

    #[test]
    fn what_may_not_be_stable_is_said_in_its_order() {
        let mut backup = Backup::default();
        backup.write(1, 100, b"first", Some(100));
        // Of the first, a part.
        backup.write(1, 105, &[7; REPLY_MAX], Some(104));
        backup.write(1, 105 + REPLY_MAX as u32, b"third", None);
        let first = (1, 100, b"first".to_vec(), false);
        let second = (1, 105, vec![7; REPLY_MAX], false);
        let third = (1, 105 + REPLY_MAX as u32, b"third".to_vec(), false);
        assert_eq!(backup.is_told(), [first, second, third]);
    }

    #[test]
    fn a_head_and_its_body_wait_together() {
        let mut backup = Backup::default();
        backup.write(1, 100, b"head", Some(100));
        backup.write(1, 104, b"body", Some(100));
        assert_eq!(backup.is_told(), [(1, 100, b"headbody".to_vec(), false)]);
        backup.write(1, 108, b"head", Some(108));
        backup.write(1, 112, b"body", Some(108));
        backup.write(1, 116, b"next", Some(116));
        assert_eq!(backup.is_told(), [(1, 116, b"next".to_vec(), false)]);
        // No longer than what may go by way of the backup.
        backup.write(1, 120, b"head", Some(120));
        backup.write(1, 124, &[7; REPLY_MAX + 1], Some(120));
        let head = (1, 120, b"head".to_vec(), false);
        assert_eq!(backup.is_told(), [head, (1, 124, vec![7; REPLY_MAX + 1], false)]);
    }

    #[test]
    fn what_is_taken_back_is_said_before_what_takes_its_place() {
        let mut backup = Backup::default();
        backup.write(1, 100, b"first", Some(100));
        backup.write(1, 102, b"other", Some(100));
        let first = (1, 100, b"first".to_vec(), false);
        assert_eq!(backup.is_told(), [first, (1, 102, b"other".to_vec(), false)]);
    }

    #[test]
    fn nothing_overtakes_what_waits() {
        let mut backup = Backup::default();
        backup.write(1, 100, b"bye", Some(100));
        backup.told.tell(&Output::Ended { flow: flow(1), seq: 103 }, &[]);
        backup.write(2, 100, b"hi", Some(100));
        backup.told.tell(&Output::Lost { flow: flow(2), seq: 102 }, &[]);
        backup.write(3, 100, b"crash", Some(100));
        backup.told.tell(&Output::Crashed { flow: flow(3), seq: 105 }, &[]);
        backup.told.keep_crashed();
        let said = [
            (1, 100, b"bye".to_vec(), false),
            (1, 103, Vec::new(), true),
            (2, 100, b"hi".to_vec(), false),
            (2, 102, b"lost".to_vec(), false),
            (3, 100, b"crash".to_vec(), false),
            (3, 105, Vec::new(), true),
        ];
        assert_eq!(backup.is_told(), said);
    }

    #[test]
    fn of_what_is_over_nothing_is_said() {
        let mut backup = Backup::default();
        backup.write(1, 100, b"first", Some(100));
        backup.told.tell(&Output::Gone { flow: flow(1), seq: 105 }, &[]);
        // The next connection with its addresses.
        backup.write(1, 900, b"first", Some(900));
        assert_eq!(backup.is_told(), [(1, 900, b"first".to_vec(), false)]);
    }

    #[test]
    fn a_new_stream_misses_only_what_was_said_on_the_old_one() {
        let mut backup = Backup::default();
        for client in 1..=3 {
            backup.write(client, 100, b"first", Some(100));
        }
        assert_eq!(backup.is_told().len(), 3);
        // Of these the backup has heard without being told.
        for client in 1..=3 {
            backup.write(client, 105, b"more", Some(105));
            backup.write(client, 109, b"most", Some(109));
        }
        backup.told.compare(flow(1), 109);
        backup.told.compare(flow(2), 104);
        backup.told.compared();
        let lost = |client, seq| (client, seq, b"lost".to_vec(), false);
        let most = |client| (client, 109, b"most".to_vec(), false);
        assert_eq!(backup.is_told(), [lost(2, 104), lost(3, 105), most(1), most(2), most(3)]);
    }
}
