//! What a control stream costs in processor time: sealing at one end and opening at the other,
//! without a network between them. What else runs on the machine has little part in it.
//!
//! ```sh
//! cargo run --release -p control --example stream_speed
//! ```

use std::time::Duration;

use control::{Identity, Psk, Rng, Stream};
use nix::time::{ClockId, clock_gettime};

/// What is sealed before it is opened, in bytes of plaintext.
const BATCH: usize = 256 << 10;

fn main() {
    // Bulk: 1 GiB. Small replies: each written alone, or those of one drain of the ring together.
    measure("64 KiB", 64 << 10, 1 << 14, 1);
    measure("300 B", 300, 1_000_000, 1);
    measure("32 x 300 B", 32 * 300, 1_000_000 / 32, 32);
}

/// Writes so many times and prints how much either end does in a second of processor time, and how
/// long a record takes. The clock is read once in many writes, as reading it is a system call.
fn measure(name: &str, length: usize, writes: usize, records: usize) {
    let (mut primary, mut backup) = established();
    let message: Vec<u8> = (0..length).map(|i| i as u8).collect();
    let (mut sealing, mut opening) = (Duration::ZERO, Duration::ZERO);
    let mut plaintext = Vec::new();
    let mut left = writes;
    while left > 0 {
        let batch = left.min(BATCH.div_ceil(length));
        left -= batch;
        let begin = cpu_time();
        for _ in 0..batch {
            primary.write(&message);
        }
        let sealed = cpu_time();
        backup.received(primary.to_send(), &mut plaintext).expect("nobody is in between");
        let opened = cpu_time();
        primary.sent(primary.to_send().len());
        assert!(plaintext.chunks(length).all(|piece| piece == message));
        assert_eq!(plaintext.len(), batch * length);
        plaintext.clear();
        sealing += sealed - begin;
        opening += opened - sealed;
    }
    let bytes = (writes * length) as f64;
    let mb_per_s = |time: Duration| bytes / 1e6 / time.as_secs_f64();
    let ns = |time: Duration| time.as_nanos() / (writes * records) as u128;
    println!(
        "{writes} writes of {name}: sealing {:.0} MB/s ({} ns a record), opening {:.0} MB/s ({} \
         ns a record)",
        mb_per_s(sealing),
        ns(sealing),
        mb_per_s(opening),
        ns(opening),
    );
}

/// What this thread has used of a processor.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has this clock").into()
}

fn established() -> (Stream, Stream) {
    let (psk, rng) = (Psk::from_bytes([1; 32]), Rng::system());
    let identity = |name: &str, peer: &str| Identity {
        cluster: "files".to_owned(),
        name: name.to_owned(),
        peer: peer.to_owned(),
        incarnation: 1,
    };
    let mut primary = Stream::dial(&psk, &identity("a", "b"), &rng);
    let mut backup = Stream::answer(&psk, &identity("b", "a"), &rng);
    carry(&mut primary, &mut backup);
    carry(&mut backup, &mut primary);
    carry(&mut primary, &mut backup);
    (primary, backup)
}

fn carry(from: &mut Stream, to: &mut Stream) {
    to.received(from.to_send(), &mut Vec::new()).expect("nobody is in between");
    from.sent(from.to_send().len());
}
