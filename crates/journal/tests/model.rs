//! The journal against a model that keeps one array element per byte.
//!
//! A stream is cut at random, its segments are repeated, shuffled, stretched over each other and
//! mixed with forged ones; after each the journal must answer what the model answers, and hold the
//! same bytes at the same places.

use std::collections::{HashMap, HashSet};

use journal::{Appended, Budget, Journal, Opened, WINDOW_MAX};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// RFC 9293 receive side, as naively as it can be written.
struct Model {
    irs: u32,
    bytes: Vec<Option<u8>>,
    fin_at: Option<usize>,
    conflicting_bytes: u64,
}

impl Model {
    fn new(irs: u32) -> Self {
        Self { irs, bytes: Vec::new(), fin_at: None, conflicting_bytes: 0 }
    }

    fn contiguous(&self) -> usize {
        self.bytes.iter().take_while(|b| b.is_some()).count()
    }

    fn seq_of(&self, offset: usize) -> u32 {
        self.irs.wrapping_add(1).wrapping_add(offset as u32)
    }

    fn rcv_nxt(&self) -> u32 {
        let contiguous = self.contiguous();
        self.seq_of(contiguous + usize::from(self.fin_at == Some(contiguous)))
    }

    fn append(&mut self, start: i64, payload: &[u8], fin: bool, window: i64) -> Appended {
        if payload.is_empty() && !fin {
            return Appended::Duplicate;
        }
        let contiguous = self.contiguous() as i64;
        let end = start + payload.len() as i64;
        let misplaced = match self.fin_at {
            Some(fin_at) => {
                (!payload.is_empty() && end > fin_at as i64) || (fin && end != fin_at as i64)
            }
            None => fin && end < self.bytes.len() as i64,
        };
        if misplaced {
            return Appended::AfterFin;
        }
        if start > contiguous && end + i64::from(fin) > contiguous + window {
            return Appended::BeyondWindow;
        }
        let mut news = fin && self.fin_at.is_none();
        if fin {
            self.fin_at = Some(end as usize);
        }
        let mut new_bytes = 0;
        for (at, &byte) in (start..).zip(payload) {
            let Ok(at) = usize::try_from(at) else { continue };
            if at >= self.bytes.len() {
                self.bytes.resize(at + 1, None);
            }
            match self.bytes[at] {
                Some(first) => self.conflicting_bytes += u64::from(first != byte),
                None => {
                    self.bytes[at] = Some(byte);
                    new_bytes += 1;
                    news = true;
                }
            }
        }
        if news {
            Appended::Stored { new_bytes, rcv_nxt: self.rcv_nxt() }
        } else {
            Appended::Duplicate
        }
    }

    /// Runs of bytes behind the first hole.
    fn ahead(&self) -> Vec<(u32, Vec<u8>)> {
        let mut runs: Vec<(u32, Vec<u8>)> = Vec::new();
        let mut end_of_run = None;
        for at in self.contiguous()..self.bytes.len() {
            let Some(byte) = self.bytes[at] else { continue };
            match runs.last_mut() {
                Some(run) if end_of_run == Some(at) => run.1.push(byte),
                _ => runs.push((self.seq_of(at), vec![byte])),
            }
            end_of_run = Some(at + 1);
        }
        runs
    }
}

#[derive(Clone, Debug)]
struct Segment {
    start: i64,
    len: usize,
    /// Different from zero: a forged segment, whose bytes are not those of the stream.
    forged: u8,
    fin: bool,
}

impl Segment {
    fn payload(&self) -> Vec<u8> {
        (self.start..).take(self.len).map(|at| stream_byte(at) ^ self.forged).collect()
    }
}

fn stream_byte(at: i64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15u64 as i64) >> 40) as u8
}

/// Sequence numbers near the wrap as often as all others.
fn any_irs() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), (u32::MAX - 6000)..=u32::MAX, 0..3u32, Just(0x7fff_ffff)]
}

/// The whole stream in segments, some of them twice or stretched, in an order that is off by up to
/// `disorder` places; here and there a forged one.
fn segments() -> impl Strategy<Value = Vec<Segment>> {
    let lengths = prop_oneof![
        vec(1usize..40, 0..150),
        vec(1usize..3000, 0..40),
        // Long enough for several pieces of the greatest size behind one hole.
        vec(20_000usize..90_000, 0..6),
    ];
    let disorder = prop_oneof![Just(0.0), 1.0..4.0, Just(1e9)];
    let stray = (0.0..1.0f64, -3000i64..3000, 0usize..300, 0u8..4, prop::bool::weighted(0.2));
    (lengths, disorder, any::<u64>(), vec(stray, 0..6), any::<bool>()).prop_map(
        |(lengths, disorder, seed, strays, ends)| {
            let mut random = Random(seed);
            let total: usize = lengths.iter().sum();
            let mut placed: Vec<(f64, Segment)> = Vec::new();
            let mut start = 0i64;
            for (i, &len) in lengths.iter().enumerate() {
                let fin = ends && i + 1 == lengths.len();
                let mut segment = Segment { start, len, forged: 0, fin };
                placed.push((i as f64 + random.unit() * disorder, segment.clone()));
                // Sent again, sometimes with its neighbours' bytes.
                if random.unit() < 0.3 {
                    let longer = (random.unit() * 2.0 * len as f64) as usize;
                    segment.start -= (longer / 2) as i64;
                    segment.len = (len + longer).min((total as i64 - segment.start) as usize);
                    segment.fin = ends && segment.start + segment.len as i64 == total as i64;
                    placed.push((i as f64 + random.unit() * (disorder + 3.0), segment));
                }
                start += len as i64;
            }
            for (when, near, len, forged, fin) in strays {
                let start = (total as f64 * random.unit()) as i64 + near;
                let order = when * lengths.len() as f64;
                placed.push((order, Segment { start, len, forged, fin }));
            }
            placed.sort_by(|a, b| a.0.total_cmp(&b.0));
            placed.into_iter().map(|(_, segment)| segment).collect()
        },
    )
}

/// Enough randomness to shuffle with, the same for the same seed.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / (1u64 << 31) as f64
    }
}

/// The journal holds what the model holds.
fn check_same(journal: &Journal<u32>, key: u32, model: &Model) {
    let instream = journal.instream(&key).expect("the flow is open");
    let contiguous = model.contiguous();
    assert_eq!(instream.irs(), model.irs);
    assert_eq!(instream.contiguous_len(), contiguous as u64);
    assert_eq!(instream.rcv_nxt(), model.rcv_nxt());
    assert_eq!(instream.fin_seq(), model.fin_at.map(|at| model.seq_of(at)));
    assert_eq!(instream.is_complete(), model.fin_at == Some(contiguous));

    // Touching ranges may come apart: put them together as the model does.
    let mut runs: Vec<(u32, Vec<u8>)> = Vec::new();
    for (seq, bytes) in instream.out_of_order() {
        assert!(!bytes.is_empty());
        match runs.last_mut() {
            Some(run) if run.0.wrapping_add(run.1.len() as u32) == seq => run.1.extend(bytes),
            _ => runs.push((seq, bytes.to_vec())),
        }
    }
    assert!(runs == model.ahead(), "bytes behind the hole differ");

    for offset in [0, contiguous / 3, contiguous.saturating_sub(1), contiguous, contiguous + 1] {
        let chunks: Vec<&[u8]> = instream.chunks_from(offset as u64).collect();
        assert!(chunks.iter().all(|c| !c.is_empty()));
        let wanted = model.bytes[..contiguous].iter().skip(offset).copied();
        assert!(chunks.concat().into_iter().map(Some).eq(wanted), "bytes differ from {offset} on");
    }

    let nxt = model.rcv_nxt();
    assert!(journal.reset_is_acceptable(&key, nxt));
    assert!(!journal.reset_is_acceptable(&key, nxt.wrapping_add(1)));
    // The FIN's own number, once it is in order, and nothing else before `nxt`.
    assert_eq!(journal.reset_is_acceptable(&key, nxt.wrapping_sub(1)), instream.is_complete());
    assert!(!journal.reset_is_acceptable(&key, nxt.wrapping_sub(2)));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    /// Invariant 6 of the design: byte n of a stream never changes, whatever arrives.
    #[test]
    fn equals_the_naive_model(irs in any_irs(), segments in segments()) {
        let mut journal = Journal::new(usize::MAX);
        prop_assert_eq!(journal.open(7, irs, usize::MAX), Opened::New);
        let mut model = Model::new(irs);
        for (i, segment) in segments.iter().enumerate() {
            let payload = segment.payload();
            let seq = irs.wrapping_add(1).wrapping_add(segment.start as u32);
            let appended = journal.append(&7, seq, &payload, segment.fin);
            let wanted = model.append(segment.start, &payload, segment.fin, WINDOW_MAX as i64);
            prop_assert_eq!(appended, wanted, "segment {}: {:?}", i, segment);
            prop_assert_eq!(journal.stats().conflicting_bytes, model.conflicting_bytes);
            if i % 8 == 0 {
                check_same(&journal, 7, &model);
            }
        }
        check_same(&journal, 7, &model);
        prop_assert!(journal.close(&7));
        prop_assert_eq!(journal.bytes(), 0);
    }

    /// Invariant 7 of the design: memory is bounded, a flow past its budget is gone and says so, and
    /// the others are as they were.
    #[test]
    fn budgets_hold_and_everything_is_given_back(
        total in 4_000usize..400_000,
        flow_budget in 100usize..100_000,
        ops in vec((0u8..10, 0u32..40, any::<u32>(), 1usize..2500), 1..250),
    ) {
        let mut journal = Journal::new(total);
        let mut models: HashMap<u32, Model> = HashMap::new();
        for (op, key, random, len) in ops {
            match op {
                0..2 => match journal.open(key, random, flow_budget) {
                    Opened::New => assert!(models.insert(key, Model::new(random)).is_none()),
                    Opened::Replaced => assert!(models.insert(key, Model::new(random)).is_some()),
                    Opened::OverBudget => assert!(!models.contains_key(&key)),
                },
                2 => assert_eq!(journal.close(&key), models.remove(&key).is_some()),
                _ => {
                    let hole = if random % 4 == 0 { random as usize % 5000 } else { 0 };
                    let contiguous = models.get(&key).map_or(0, Model::contiguous);
                    let irs = models.get(&key).map_or(0, |m| m.irs);
                    let segment =
                        Segment { start: (contiguous + hole) as i64, len, forged: 0, fin: false };
                    let seq = irs.wrapping_add(1).wrapping_add(segment.start as u32);
                    // Budgets count in steps of 16 bytes.
                    let window = (flow_budget as u64 / 16 * 16).min(WINDOW_MAX) as i64;
                    match journal.append(&key, seq, &segment.payload(), false) {
                        Appended::UnknownFlow => assert!(!models.contains_key(&key)),
                        Appended::OverBudget(budget) => {
                            let model = models.remove(&key).expect("only an open flow can be over");
                            let held = model.bytes.iter().flatten().count() + len;
                            let full = journal.bytes() + 4 * held + 2000;
                            match budget {
                                Budget::Flow => assert!(4 * held + 1000 > flow_budget),
                                Budget::Total => assert!(full > total),
                            }
                            assert!(journal.instream(&key).is_none());
                        }
                        appended => {
                            let model = models.get_mut(&key).expect("the flow is open");
                            let payload = segment.payload();
                            assert_eq!(
                                appended,
                                model.append(segment.start, &payload, false, window)
                            );
                        }
                    }
                }
            }
            prop_assert!(journal.bytes() <= total);
            prop_assert_eq!(journal.len(), models.len());
            let held: usize =
                journal.keys().map(|k| journal.instream(k).expect("listed").heap_bytes()).sum();
            prop_assert!(held <= journal.bytes());
            prop_assert!(
                journal.keys().all(|k| journal.instream(k).expect("listed").heap_bytes() <= flow_budget)
            );
        }
        for (key, model) in &models {
            check_same(&journal, *key, model);
        }
        for key in models.keys() {
            prop_assert!(journal.close(key));
        }
        prop_assert_eq!(journal.bytes(), 0);
        prop_assert!(journal.is_empty());
    }

    /// The table finds exactly the flows that are open, also when hashes collide all the time.
    #[test]
    fn keys_are_found_whatever_their_hash(
        ops in vec((any::<bool>(), 0u32..200), 1..600),
        hashes in prop_oneof![Just(1u32), Just(3), Just(u32::MAX)],
    ) {
        let mut journal = Journal::new(usize::MAX);
        let mut open = HashSet::new();
        for (opens, id) in ops {
            let key = Key { id, hashes };
            if opens {
                let wanted = if open.insert(key) { Opened::New } else { Opened::Replaced };
                prop_assert_eq!(journal.open(key, id, 1000), wanted);
            } else {
                prop_assert_eq!(journal.close(&key), open.remove(&key));
            }
            prop_assert_eq!(journal.len(), open.len());
        }
        let listed: HashSet<Key> = journal.keys().copied().collect();
        prop_assert_eq!(listed, open.clone());
        for id in 0..200 {
            let key = Key { id, hashes };
            let irs = journal.instream(&key).map(|s| s.irs());
            prop_assert_eq!(irs, open.contains(&key).then_some(id));
        }
        for key in open {
            prop_assert!(journal.close(&key));
        }
        prop_assert_eq!(journal.bytes(), 0);
    }
}

/// A key with only `hashes` different hash values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    id: u32,
    hashes: u32,
}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u32(self.id % self.hashes);
    }
}
