//! What a journaled byte and a journaled request cost: `cargo bench -p journal`.
//!
//! Printed beside a plain copy into memory that is as fresh as the journal's, which is the floor:
//! every byte has to be copied once, and its page taken from the kernel once. On a virtual machine
//! with two cores both run at 2.0 to 2.4 GiB/s, in-order segments of 64 KiB within 3 % of the copy.

use std::hint::black_box;
use std::time::{Duration, Instant};

use journal::{Appended, Journal, Opened, PIECES_MAX};

const MIB: usize = 1024 * 1024;

fn main() {
    for segment in [1460, 16 * 1024, 64 * 1024] {
        let count = 512 * MIB / segment;
        let payload = vec![0x5a; segment];
        // Interleaved, the best of five: the machine may be busy.
        let (mut copied, mut in_order, mut reordered) = (vec![], vec![], vec![]);
        for _ in 0..5 {
            copied.push(copy(&payload, count));
            in_order.push(append_all(&payload, count, |i| i));
            // Each pair of segments the wrong way round.
            reordered.push(append_all(&payload, count & !1, |i| i ^ 1));
        }
        for (name, times) in
            [("plain copy", copied), ("in order", in_order), ("pairs swapped", reordered)]
        {
            let best = times.into_iter().min().unwrap_or_default();
            let gib_per_s = (segment * count) as f64 / best.as_secs_f64() / 1024.0 / MIB as f64;
            let ns = best.as_nanos() as f64 / count as f64;
            println!("{segment:>6} B segments, {name:<13} {gib_per_s:6.2} GiB/s {ns:9.0} ns each");
        }
    }
    holes();
    requests(100_000);
}

/// The most expensive segments a client can send: as many holes as a flow may have, each next one in
/// the middle of those before.
fn holes() {
    let mut journal = Journal::new(usize::MAX);
    assert_eq!(journal.open(1u32, 0, usize::MAX), Opened::New);
    let count = PIECES_MAX as u32;
    let begin = Instant::now();
    for i in 0..count {
        let place = if i % 2 == 0 { i / 2 } else { count - 1 - i / 2 };
        let appended = journal.append(&1, 3 + 2 * place, &[1], false);
        assert!(matches!(appended, Appended::Stored { new_bytes: 1, .. }), "{appended:?}");
    }
    let ns = begin.elapsed().as_nanos() / u128::from(count);
    println!("{count} holes, each in the middle of the others: {ns} ns each");
}

fn copy(payload: &[u8], count: usize) -> Duration {
    let begin = Instant::now();
    let per_chunk = (256 * 1024 / payload.len()).max(1);
    let mut chunks = Vec::new();
    for i in 0..count {
        if i % per_chunk == 0 {
            chunks.push(Vec::with_capacity(per_chunk * payload.len()));
        }
        if let Some(chunk) = chunks.last_mut() {
            chunk.extend_from_slice(payload);
        }
    }
    black_box(&chunks);
    begin.elapsed()
}

fn append_all(payload: &[u8], count: usize, order: impl Fn(usize) -> usize) -> Duration {
    let mut journal = Journal::new(usize::MAX);
    assert_eq!(journal.open(1u32, 0, usize::MAX), Opened::New);
    let begin = Instant::now();
    for i in 0..count {
        let seq = 1 + (order(i) * payload.len()) as u32;
        let appended = journal.append(&1, seq, payload, false);
        assert!(matches!(appended, Appended::Stored { .. }), "{appended:?}");
    }
    let elapsed = begin.elapsed();
    let len = journal.instream(&1).map(|s| s.contiguous_len());
    assert_eq!(len, Some((count * payload.len()) as u64));
    elapsed
}

/// Short requests on many flows: opening, appending, closing, with keys the size of an IPv6 flow's.
fn requests(count: u32) {
    let key = |i: u32| {
        let mut key = [0u8; 36];
        key[..4].copy_from_slice(&i.to_le_bytes());
        key
    };
    let mut journal = Journal::new(usize::MAX);
    let mut step = |name: &str, action: &dyn Fn(&mut Journal<[u8; 36]>, u32) -> bool| {
        let begin = Instant::now();
        for i in 0..count {
            assert!(action(&mut journal, i));
        }
        let ns = begin.elapsed().as_nanos() / u128::from(count);
        println!("{count} flows, {name:<22} {ns:5} ns each, {} B held per flow", {
            journal.bytes() / count as usize
        });
    };
    step("open", &|j, i| j.open(key(i), i, MIB) == Opened::New);
    step("append 100 B", &|j, i| {
        matches!(j.append(&key(i), i.wrapping_add(1), &[1; 100], false), Appended::Stored { .. })
    });
    step("append another 100 B", &|j, i| {
        matches!(j.append(&key(i), i.wrapping_add(101), &[1; 100], false), Appended::Stored { .. })
    });
    step("close", &|j, i| j.close(&key(i)));
}
