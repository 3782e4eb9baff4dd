//! What a control stream costs on one processor: sealing at one end and opening at the other,
//! without a network between them.
//!
//! ```sh
//! cargo run --release -p control --example stream_speed
//! ```

use std::time::{Duration, Instant};

use control::{Identity, Psk, Rng, Stream};

const MIB: f64 = (1 << 20) as f64;

fn main() {
    // Bulk: 1 GiB. Small replies: each written alone, or those of one drain of the ring together.
    measure("64 KiB", 64 << 10, 1 << 14, 1);
    measure("300 B", 300, 1_000_000, 1);
    measure("32 x 300 B", 32 * 300, 1_000_000 / 32, 32);
}

/// Writes so many times and prints how long either end took, per MiB of plaintext and per record.
fn measure(name: &str, length: usize, writes: usize, records: usize) {
    let (mut primary, mut backup) = established();
    let message: Vec<u8> = (0..length).map(|i| i as u8).collect();
    let (mut sealing, mut opening) = (Duration::ZERO, Duration::ZERO);
    let (mut plaintext, mut received) = (Vec::new(), 0);
    for _ in 0..writes {
        let begin = Instant::now();
        primary.write(&message);
        let sealed = Instant::now();
        backup.received(primary.to_send(), &mut plaintext).expect("nobody is in between");
        let opened = Instant::now();
        primary.sent(primary.to_send().len());
        assert!(plaintext == message);
        received += plaintext.len();
        plaintext.clear();
        sealing += sealed - begin;
        opening += opened - sealed;
    }
    let mib_per_s = |time: Duration| received as f64 / MIB / time.as_secs_f64();
    let ns = |time: Duration| time.as_nanos() / (writes * records) as u128;
    println!(
        "{writes} writes of {name}: sealing {:.0} MiB/s ({} ns a record), opening {:.0} MiB/s ({} \
         ns), both {:.0} MiB/s",
        mib_per_s(sealing),
        ns(sealing),
        mib_per_s(opening),
        ns(opening),
        mib_per_s(sealing + opening),
    );
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
