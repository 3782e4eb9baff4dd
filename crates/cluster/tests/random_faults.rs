//! Random faults of every kind that the fail-stop assumption allows; the pair asserts invariant 3
//! after every action. A smoke test: the simulator does the exhaustive work.

mod pair;

use cluster::{Event, Link};
use pair::{A, B, Pair};

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

fn run(seed: u64) {
    let mut dice = Dice(seed);
    let mut pair = if dice.below(4) == 0 { Pair::new() } else { Pair::duplex() };
    for _ in 0..40 {
        let n = usize::try_from(dice.below(2)).expect("0 or 1");
        match dice.below(12) {
            0 => pair.kill(n),
            1 | 2 if !pair.nodes[n].alive => pair.restart(n),
            1 => pair.restart(n),
            2..=4 => pair.pause(n),
            5 | 6 if pair.nodes[n].paused && pair.nodes[n].alive => pair.resume(n),
            7 => {
                // At most one link at a time: two running nodes always hear each other.
                pair.heal_all();
                let link = Link::ALL[n];
                match dice.below(4) {
                    0 => {}
                    1 => pair.cut(link),
                    from => pair.cut_from(usize::try_from(from - 2).expect("0 or 1"), link),
                }
            }
            8 => pair.event(n, Event::ServerCrashed),
            9 => pair.event(n, Event::ServiceReady(true)),
            10 => pair.event(n, Event::SwitchoverRequested { by_user: true }),
            11 => pair.nodes[n].clients_answer = dice.below(2) == 0,
            _ => {}
        }
        let longest = [3, 30, 130, 600, 4_000][usize::try_from(dice.below(5)).expect("small")];
        pair.run_ms(dice.below(longest));
    }
    pair.heal_all();
    for n in [A, B] {
        pair.nodes[n].clients_answer = true;
        if !pair.nodes[n].alive {
            pair.restart(n);
        } else if pair.nodes[n].paused {
            pair.resume(n);
        }
        pair.event(n, Event::ServiceReady(true));
    }
    pair.expect_within(5_000, &format!("duplex again, seed {seed}"), |p| {
        p.is_duplex(A) || p.is_duplex(B)
    });
}

#[test]
fn invariant_3_and_recovery_hold_under_random_faults() {
    for seed in 0..RUNS {
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "failing seed: {seed}");
    }
}

const RUNS: u64 = 1_000;
