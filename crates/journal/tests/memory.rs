//! What the journal says it holds is what it takes from the allocator, to the byte and at every
//! instant; and that is little.
//!
//! Every block that this program allocates passes a counting allocator. It counts per thread, so
//! tests that run at the same time do not disturb each other.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use journal::{Appended, Journal, Opened};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Counting;

thread_local! {
    /// Held now, in bytes as the allocator rounds them; below zero where a thread frees what another
    /// one took.
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// The most held since it was last set.
    static PEAK: Cell<isize> = const { Cell::new(0) };
    /// Taken since the thread began, whether freed or not.
    static TAKEN: Cell<usize> = const { Cell::new(0) };
    static BLOCKS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every request is passed on to `System` as it came; counting neither allocates (the
// thread-locals are constant-initialised and have no destructor) nor touches the blocks.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.get() + block(layout.size());
        HELD.set(held);
        PEAK.set(PEAK.get().max(held));
        TAKEN.set(TAKEN.get() + layout.size());
        BLOCKS.set(BLOCKS.get() + 1);
        // SAFETY: the caller keeps to the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - block(layout.size()));
        // SAFETY: `ptr` came from `System.alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }

    // `realloc` is the trait's own: a new block, a copy, and the old block freed, which is the
    // worst that an allocator does.
}

/// What glibc takes for a block: its header, 16-byte steps, at least 32 bytes.
fn block(size: usize) -> isize {
    (size + 8).next_multiple_of(16).max(32) as isize
}

fn held_since(before: isize) -> usize {
    usize::try_from(HELD.get() - before).expect("no more was freed than taken")
}

fn peak_since(before: isize) -> usize {
    usize::try_from(PEAK.get() - before).expect("the peak is not below the start")
}

/// A flow's key in the data path: two IPv6 addresses and two ports.
type Key = [u8; 36];

fn key(i: u32) -> Key {
    let mut key = [0; 36];
    key[..4].copy_from_slice(&i.to_le_bytes());
    key
}

fn append(journal: &mut Journal<Key>, i: u32, seq: u32, payload: &[u8]) {
    let appended = journal.append(&key(i), seq, payload, false);
    assert!(matches!(appended, Appended::Stored { .. }), "{appended:?}");
}

/// The bar of the design: an idle flow, its 100-byte request included, takes at most 250 bytes of a
/// node's memory, whatever the table's state of growth.
#[test]
fn an_idle_flow_is_cheap() {
    const COUNT: u32 = 60_000;
    let request = [b'x'; 100];
    let mut journal = Journal::new(1 << 30);
    let before = HELD.get();
    let (mut worst, mut worst_at) = (0.0, 0);
    let mut check = |journal: &Journal<Key>| {
        let held = held_since(before);
        assert_eq!(held, journal.bytes());
        let each = held as f64 / journal.len() as f64;
        if each > worst {
            (worst, worst_at) = (each, journal.len());
        }
    };
    for i in 0..COUNT {
        assert_eq!(journal.open(key(i), i, 1 << 20), Opened::New);
        append(&mut journal, i, i.wrapping_add(1), &request);
        if i >= 500 {
            check(&journal);
        }
    }
    // And while they go away again.
    for i in 0..COUNT - 500 {
        assert!(journal.close(&key(i * 11 % (COUNT - 500))));
        check(&journal);
    }
    println!("an idle flow takes at most {worst:.1} B, with {worst_at} flows");
    assert!(worst <= 250.0, "{worst:.1} B per idle flow with {worst_at} flows");
}

/// A long upload is never moved: each byte is allocated for once, and a fifth at most is spare.
#[test]
fn a_long_stream_is_not_copied_again() {
    const LEN: usize = 500_000_000;
    let segment = vec![7u8; 64_000];
    let mut journal = Journal::new(1 << 30);
    assert_eq!(journal.open(key(0), 0, 1 << 30), Opened::New);
    let (taken, held, blocks) = (TAKEN.get(), HELD.get(), BLOCKS.get());
    PEAK.set(held);
    for i in 0..LEN / segment.len() {
        append(&mut journal, 0, 1u32.wrapping_add((i * segment.len()) as u32), &segment);
    }
    let len = LEN / segment.len() * segment.len();
    assert_eq!(journal.instream(&key(0)).unwrap().contiguous_len(), len as u64);
    let most = len + len / 500;
    let taken = TAKEN.get() - taken;
    assert!(taken <= most, "{taken} B taken in all for {len} B of stream");
    let peak = peak_since(held);
    assert!(peak <= most, "{peak} B held at the most for {len} B of stream");
    let blocks = BLOCKS.get() - blocks;
    assert!(blocks <= len / 200_000, "{blocks} blocks for {len} B of stream");
}

/// At every step the charge is what is held, and never, not even in the middle of a step, is more
/// held than the budget allows.
#[test]
fn the_charge_is_what_is_held() {
    let mut random = 1u64;
    let mut draw = |below: u32| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((random >> 33) as u32) % below
    };
    let payload = vec![1u8; 20_000];
    let (mut over, mut refused, mut reordered) = (0, 0, 0);
    for total in [10_000, 100_000, 1_000_000] {
        let mut journal = Journal::new(total);
        let before = HELD.get();
        PEAK.set(before);
        for _ in 0..30_000 {
            let i = draw(200);
            match draw(20) {
                0..4 => match journal.open(key(i), 0, 40_000) {
                    Opened::OverBudget => refused += 1,
                    Opened::New | Opened::Replaced => {}
                },
                4 | 5 => {
                    journal.close(&key(i));
                }
                choice => {
                    let next = journal.instream(&key(i)).map_or(1, |s| s.rcv_nxt());
                    let hole = if choice < 12 { draw(5_000) } else { 0 };
                    let len = if draw(10) == 0 { draw(20_000) } else { draw(1_500) };
                    let seq = next.wrapping_add(hole);
                    match journal.append(&key(i), seq, &payload[..len as usize], choice == 19) {
                        Appended::OverBudget(_) => over += 1,
                        Appended::Stored { new_bytes: 1.., .. } if hole > 0 => reordered += 1,
                        _ => {}
                    }
                }
            }
            assert_eq!(held_since(before), journal.bytes());
        }
        assert!(peak_since(before) <= total, "{} B of {total} B", peak_since(before));
        for i in 0..200 {
            journal.close(&key(i));
        }
        assert_eq!((journal.bytes(), HELD.get()), (0, before));
    }
    assert!(over > 100 && refused > 100 && reordered > 1000, "{over}, {refused}, {reordered}");
}

/// The kernel's own figure agrees with the allocator's, so the model of a block is right.
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#[test]
fn the_kernel_agrees() {
    // In a process of its own: other tests move the figure, too.
    const CHILD: &str = "JOURNAL_TEST_MEASURES_ITSELF";
    if std::env::var_os(CHILD).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_kernel_agrees", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        print!("{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4096
    };
    let mut journal = Journal::new(1 << 30);
    let before = resident();
    for i in 0..200_000 {
        assert_eq!(journal.open(key(i), i, 1 << 20), Opened::New);
        append(&mut journal, i, i.wrapping_add(1), &[b'x'; 100]);
    }
    let grown = resident() - before;
    let ratio = grown as f64 / journal.bytes() as f64;
    println!("resident {:.1} B per idle flow, charged {:.1} B", grown as f64 / 2e5, {
        journal.bytes() as f64 / 2e5
    });
    // Indexes left behind while the table grew may not have gone back to the kernel.
    assert!((0.9..1.15).contains(&ratio), "{grown} B resident for {} B charged", journal.bytes());
}
