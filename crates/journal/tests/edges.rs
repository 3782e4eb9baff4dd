//! The corners of the sequence space, one by one, each with the clause or promise it stands for.

use journal::{Appended, Budget, Journal, Opened, PIECES_MAX, WINDOW_MAX};

const FLOW: u8 = 1;

fn opened(irs: u32, flow_budget_bytes: usize) -> Journal<u8> {
    let mut journal = Journal::new(1 << 30);
    assert_eq!(journal.open(FLOW, irs, flow_budget_bytes), Opened::New);
    journal
}

fn stored(new_bytes: usize, rcv_nxt: u32) -> Appended {
    Appended::Stored { new_bytes, rcv_nxt }
}

fn content(journal: &Journal<u8>) -> Vec<u8> {
    journal.instream(&FLOW).unwrap().chunks_from(0).collect::<Vec<_>>().concat()
}

/// RFC 9293 §3.4: the space is circular.
#[test]
fn a_stream_crosses_the_wrap() {
    let mut journal = opened(u32::MAX - 3, 1 << 20);
    assert_eq!(journal.append(&FLOW, 1, b"fgh", false), stored(3, u32::MAX - 2));
    assert_eq!(journal.append(&FLOW, u32::MAX - 2, b"abcd", true), Appended::AfterFin);
    assert_eq!(journal.append(&FLOW, u32::MAX - 2, b"abcd", false), stored(4, 1 + 3));
    assert_eq!(content(&journal), b"abcdfgh");
}

/// A segment may begin before the first byte: a keep-alive on an idle connection does.
#[test]
fn what_lies_before_the_start_is_no_part_of_the_stream() {
    let mut journal = opened(1000, 1 << 20);
    assert_eq!(journal.append(&FLOW, 1000, b"?", false), Appended::Duplicate);
    assert_eq!(journal.append(&FLOW, 998, b"???ab", false), stored(2, 1003));
    assert_eq!(journal.append(&FLOW, 998, b"!!!ab", false), Appended::Duplicate);
    assert_eq!(content(&journal), b"ab");
    assert_eq!(journal.stats().conflicting_bytes, 0);
}

/// Invariant 6 of the design, for each way in which segments can overlap.
#[test]
fn the_byte_that_came_first_stays() {
    let mut journal = opened(0, 1 << 20);
    assert_eq!(journal.append(&FLOW, 4, b"DEF", false), stored(3, 1));
    // Behind the hole: over the piece's front, its back, and across it.
    assert_eq!(journal.append(&FLOW, 3, b"cd", false), stored(1, 1));
    assert_eq!(journal.append(&FLOW, 6, b"fg", false), stored(1, 1));
    assert_eq!(journal.append(&FLOW, 2, b"bcdefgh", false), stored(2, 1));
    assert_eq!(journal.stats().conflicting_bytes, 1 + 1 + 3);
    // Closing the hole, over all of it and beyond.
    assert_eq!(journal.append(&FLOW, 1, b"a_______ij", false), stored(3, 11));
    assert_eq!(content(&journal), b"abcDEFghij");
    assert_eq!(journal.stats().conflicting_bytes, 5 + 7);
    // Long past.
    assert_eq!(journal.append(&FLOW, 1, b"abcdef", false), Appended::Duplicate);
    assert_eq!(journal.stats().conflicting_bytes, 12 + 3);
}

/// RFC 9293 §3.4: a FIN occupies one sequence number, once it is in order.
#[test]
fn a_fin_counts_when_nothing_is_missing_before_it() {
    let mut journal = opened(0, 1 << 20);
    assert_eq!(journal.append(&FLOW, 3, b"cd", true), stored(2, 1));
    assert_eq!(journal.instream(&FLOW).unwrap().fin_seq(), Some(5));
    assert!(!journal.instream(&FLOW).unwrap().is_complete());
    assert!(!journal.reset_is_acceptable(&FLOW, 5));
    assert_eq!(journal.append(&FLOW, 1, b"ab", false), stored(2, 6));
    assert!(journal.instream(&FLOW).unwrap().is_complete());
    // The client is gone and answers a reply from before or after its FIN arrived.
    assert!(journal.reset_is_acceptable(&FLOW, 6));
    assert!(journal.reset_is_acceptable(&FLOW, 5));
    assert!(!journal.reset_is_acceptable(&FLOW, 4));
    // Sent again, with and without its data; a pure acknowledgement behind it.
    assert_eq!(journal.append(&FLOW, 3, b"cd", true), Appended::Duplicate);
    assert_eq!(journal.append(&FLOW, 5, b"", true), Appended::Duplicate);
    assert_eq!(journal.append(&FLOW, 6, b"", false), Appended::Duplicate);
}

#[test]
fn a_fin_alone_is_news() {
    let mut journal = opened(77, 1 << 20);
    assert_eq!(journal.append(&FLOW, 78, b"", true), stored(0, 79));
    assert_eq!(journal.append(&FLOW, 78, b"", true), Appended::Duplicate);
    assert_eq!(content(&journal), b"");
}

#[test]
fn nothing_contradicts_the_fin() {
    let mut journal = opened(0, 1 << 20);
    assert_eq!(journal.append(&FLOW, 1, b"abcd", false), stored(4, 5));
    assert_eq!(journal.append(&FLOW, 7, b"gh", false), stored(2, 5));
    // A FIN before bytes that are held, be they in order or behind the hole.
    for (seq, payload) in [(3, &b"c"[..]), (5, b""), (5, b"ef"), (u32::MAX, b"")] {
        assert_eq!(journal.append(&FLOW, seq, payload, true), Appended::AfterFin);
    }
    assert_eq!(journal.append(&FLOW, 9, b"", true), stored(0, 5));
    // Bytes behind it, and another one elsewhere.
    for (seq, payload, fin) in [
        (9, &b"i"[..], false),
        (8, b"hi", false),
        (5, b"efghi", false),
        (10, b"", true),
        (5, b"ef", true),
    ] {
        assert_eq!(journal.append(&FLOW, seq, payload, fin), Appended::AfterFin);
    }
    assert_eq!(journal.append(&FLOW, 5, b"ef", false), stored(2, 10));
    assert_eq!(journal.append(&FLOW, 10, b"j", false), Appended::AfterFin);
    assert_eq!(journal.stats().after_fin, 4 + 5 + 1);
    assert_eq!(content(&journal), b"abcdefgh");
}

/// Memory behind a hole is bounded by the window, and by the budget if that is smaller.
#[test]
fn the_window_ends_where_it_says() {
    for (budget, window) in [(1 << 40, WINDOW_MAX as u32), (10_000, 10_000)] {
        let irs = u32::MAX - 100;
        let mut journal = opened(irs, budget);
        let first = irs.wrapping_add(1);
        let last = first.wrapping_add(window - 1);
        assert_eq!(journal.append(&FLOW, last, b"yz", false), Appended::BeyondWindow);
        assert_eq!(journal.append(&FLOW, last, b"y", true), Appended::BeyondWindow);
        assert_eq!(journal.append(&FLOW, last.wrapping_add(1), b"", true), Appended::BeyondWindow);
        assert_eq!(journal.append(&FLOW, last, b"y", false), stored(1, first));
        // Wild sequence numbers: half the space away, ahead and behind.
        let far = first.wrapping_add(1 << 31);
        assert_eq!(journal.append(&FLOW, far, b"x", false), Appended::Duplicate);
        assert_eq!(journal.append(&FLOW, far.wrapping_sub(1), b"x", false), Appended::BeyondWindow);
        assert_eq!(journal.stats().beyond_window, 4);
        // The window moves on with the stream.
        assert_eq!(journal.append(&FLOW, first, b"a", false), stored(1, first.wrapping_add(1)));
        assert_eq!(journal.append(&FLOW, last, b"yz", false), stored(1, first.wrapping_add(1)));
    }
}

/// Invariant 7 of the design: past its budget a flow is forgotten, its memory free at once.
#[test]
fn a_flow_over_its_budget_is_forgotten() {
    let mut journal = opened(0, 50_000);
    let before = journal.bytes();
    let mut seq = 1u32;
    let refused = loop {
        match journal.append(&FLOW, seq, &[1; 1000], false) {
            Appended::Stored { new_bytes, .. } => seq += new_bytes as u32,
            other => break other,
        }
    };
    assert_eq!(refused, Appended::OverBudget(Budget::Flow));
    assert!(seq > 45_000, "refused after {seq} B of 50,000");
    assert!(journal.bytes() < before);
    assert!(journal.instream(&FLOW).is_none());
    assert_eq!(journal.append(&FLOW, seq, b"x", false), Appended::UnknownFlow);
    assert!(!journal.reset_is_acceptable(&FLOW, seq));
    assert!(!journal.close(&FLOW));
    let stats = journal.stats();
    assert_eq!((stats.over_flow_budget, stats.over_total_budget, stats.unknown_flow), (1, 0, 1));
    assert_eq!((stats.flows, stats.heap_bytes), (0, 0));
}

/// A flood of new connections cannot take the place of flows that exist.
#[test]
fn a_full_journal_refuses_new_flows_and_keeps_the_old() {
    let mut journal = Journal::new(20_000);
    let count = (0u32..).take_while(|&key| journal.open(key, key, 5000) == Opened::New).count();
    assert!(count > 50 && journal.len() == count);
    assert!(journal.bytes() <= 20_000);
    let over = count as u32;
    assert_eq!(journal.append(&over, over + 1, b"x", false), Appended::UnknownFlow);
    assert_eq!(journal.open(3, 99, 5000), Opened::Replaced);
    for key in (0..over).filter(|&key| key != 3) {
        assert_eq!(journal.instream(&key).map(|s| s.irs()), Some(key));
    }
    assert_eq!(journal.stats().over_total_budget, 1);
    // Room made by one is enough for another.
    for key in 0..over / 2 {
        assert!(journal.close(&key));
    }
    assert_eq!(journal.open(over, over, 5000), Opened::New);
}

#[test]
fn the_total_budget_is_shared() {
    let mut journal = Journal::new(100_000);
    for key in [1, 2] {
        assert_eq!(journal.open(key, 0, 1 << 30), Opened::New);
        let appended = journal.append(&key, 1, &[key; 40_000], false);
        assert_eq!(appended, stored(40_000, 40_001));
    }
    let refused = journal.append(&2, 40_001, &[2; 40_000], false);
    assert_eq!(refused, Appended::OverBudget(Budget::Total));
    assert_eq!(journal.append(&1, 40_001, &[1; 40_000], false), stored(40_000, 80_001));
    assert_eq!(journal.stats().over_total_budget, 1);
}

/// A reused address and port: RFC 9293 §3.6.1 lets a new connection begin at once.
#[test]
fn a_new_incarnation_starts_afresh() {
    let mut journal = opened(0, 1 << 20);
    assert_eq!(journal.append(&FLOW, 1, b"old", true), stored(3, 5));
    assert_eq!(journal.append(&FLOW, 20, b"x", false), Appended::AfterFin);
    assert_eq!(journal.open(FLOW, 500, 1 << 20), Opened::Replaced);
    assert_eq!(journal.append(&FLOW, 501, b"new", false), stored(3, 504));
    assert_eq!(content(&journal), b"new");
    assert_eq!(journal.len(), 1);
}

/// A client that leaves a hole after every byte costs its own flow, and little time.
#[test]
fn holes_are_bounded() {
    let full_of_holes = || {
        let mut journal = opened(0, 1 << 30);
        for i in 1..=PIECES_MAX as u32 {
            assert_eq!(journal.append(&FLOW, 1 + 2 * i, b"x", false), stored(1, 1));
        }
        journal
    };
    // All holes closed by one segment ...
    let mut journal = full_of_holes();
    let len = 2 * PIECES_MAX + 1;
    let appended = journal.append(&FLOW, 1, &vec![b'x'; len], false);
    assert_eq!(appended, stored(PIECES_MAX + 1, len as u32 + 1));
    assert_eq!(journal.instream(&FLOW).unwrap().out_of_order().count(), 0);
    assert_eq!(journal.stats().conflicting_bytes, 0);
    // ... or one hole too many.
    let mut journal = full_of_holes();
    let one_more = journal.append(&FLOW, 3 + 2 * PIECES_MAX as u32, b"x", false);
    assert_eq!(one_more, Appended::OverBudget(Budget::Flow));
    assert_eq!(journal.bytes(), 0);
}

/// What no takeover will want is freed, and a segment that comes again from there changes nothing.
#[test]
fn the_front_of_a_stream_is_freed_on_demand() {
    let mut journal = opened(0, 1 << 20);
    let empty = journal.bytes();
    let request = [7; 100];
    for i in 0..100_000u32 {
        let seq = 1 + i * 100;
        assert_eq!(journal.append(&FLOW, seq, &request, false), stored(100, seq + 100));
        assert_eq!(journal.append(&FLOW, seq - 50.min(seq), &request, false), Appended::Duplicate);
        if i % 3 == 0 {
            journal.collect(&FLOW, u64::from(i) * 100 + 100);
            assert_eq!(journal.bytes(), empty);
        }
    }
    assert_eq!(journal.stats().conflicting_bytes, 0);
    // A part of a block stays whole, and so does what is behind it.
    let end = journal.instream(&FLOW).unwrap().contiguous_len();
    assert_eq!(journal.append(&FLOW, end as u32 + 1, b"abcdef", true), stored(6, end as u32 + 8));
    journal.collect(&FLOW, end + 3);
    let instream = journal.instream(&FLOW).unwrap();
    assert!(instream.begin() <= end + 3 && instream.is_complete());
    assert_eq!(instream.chunks_from(end + 3).collect::<Vec<_>>().concat(), b"def");
    journal.collect(&FLOW, u64::MAX);
    assert_eq!(journal.instream(&FLOW).unwrap().begin(), end + 6);
    assert!(journal.instream(&FLOW).unwrap().is_complete());
}
