//! Random requests, cut anywhere, with losses anywhere, and a death at any step.

mod pair;

use pair::*;
use proptest::prelude::*;
use replies::{Excess, Why};

fn any_exchange() -> impl Strategy<Value = Exchange> {
    let length = prop_oneof![0usize..40, 0usize..2500];
    let answer = prop_oneof![
        4 => length.clone().prop_map(Answer::Length),
        2 => length.clone().prop_map(Answer::Chunked),
        1 => Just(Answer::NoContent),
    ];
    let body = prop_oneof![0usize..30, 0usize..800];
    prop_oneof![
        4 => answer.clone().prop_map(Exchange::get),
        1 => length.prop_map(Exchange::head),
        2 => (body.clone(), answer.clone()).prop_map(|(body, answer)| Exchange::post(body, answer)),
        2 => (body.clone(), answer.clone()).prop_map(|(b, answer)| Exchange::chunked_post(b, answer)),
        1 => (1usize..300, answer.clone()).prop_map(|(b, answer)| Exchange::expecting_post(b, answer)),
        2 => answer.prop_map(Exchange::fixed),
    ]
}

/// Too long to be held, by its length or without one, or long enough for its middle to be skipped.
fn any_long_exchange() -> impl Strategy<Value = Exchange> {
    prop_oneof![
        (3000usize..9000).prop_map(|n| Exchange::get(Answer::Length(n))),
        (3000usize..9000).prop_map(|n| Exchange::get(Answer::Chunked(n))),
        (3000usize..9000).prop_map(|n| Exchange::post(9, Answer::Length(n))),
        (380_000usize..700_000).prop_map(|n| Exchange::fixed(Answer::Length(n))),
        (500_000usize..700_000).prop_map(|n| Exchange::fixed(Answer::Chunked(n))),
    ]
}

fn any_closing() -> impl Strategy<Value = Option<Exchange>> {
    let closing = prop_oneof![
        (0usize..500).prop_map(|n| Exchange::get(Answer::Closing(n))),
        (0usize..500).prop_map(|n| Exchange::get(Answer::UntilClose(n))),
        (0usize..500).prop_map(|n| Exchange::fixed(Answer::UntilClose(n))),
    ];
    prop::option::weighted(0.4, closing)
}

fn any_exchanges() -> impl Strategy<Value = Vec<Exchange>> {
    let one = prop_oneof![5 => any_exchange(), 1 => any_long_exchange()];
    (prop::collection::vec(one, 1..6), any_closing()).prop_map(|(mut exchanges, closing)| {
        exchanges.extend(closing);
        exchanges
    })
}

/// Steps at random. Whether anything is left to do cannot be told by one that did nothing. In some
/// runs everything is done in large pieces, and in some the client hardly acknowledges anything.
fn play(pair: &mut Pair, pipelined: bool, steps: usize, random: &mut fastrand::Rng) {
    let (bulk, acks) = (random.bool(), random.bool());
    for _ in 0..steps {
        let lost = match random.u32(0..12) {
            0 => FirstLeg,
            1 => SecondLeg,
            _ => Not,
        };
        let most = match random.u32(0..3) {
            _ if bulk => 64 * 1024,
            0 => random.usize(1..4),
            1 => random.usize(1..1500),
            _ => 64 * 1024,
        };
        match random.u32(0..9) {
            0 | 1 => {
                let begin = pair.client_begins();
                let all = if pipelined { usize::MAX } else { pair.end_of_current() };
                let _ = pair.client_sends(begin..all.min(begin + most), lost);
            }
            2 => drop(pair.server_acks(lost)),
            3 => drop(pair.server_writes(most)),
            4 => drop(pair.primary_ships(most, lost)),
            5 => drop(pair.order_arrives(lost)),
            6 => {
                let _ = pair.orders_are_repeated();
                pair.something_is_shipped_again(random);
            }
            7 => drop(pair.server_sends(random.u32(0..4) > 0, lost)),
            _ if acks || random.u32(0..20) == 0 => drop(pair.client_acks(lost)),
            _ => {}
        }
    }
}

fn check_death(exchanges: Vec<Exchange>, excess: Excess, pipelined: bool, seed: u64, steps: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pair = Pair::new(exchanges, policy(excess));
    play(&mut pair, pipelined, steps, &mut random);
    assert_eq!(pair.log.why_open(&FLOW), None);
    pair.kill_primary();
    play(&mut pair, pipelined, steps / 2, &mut random);
    pair.finish(pipelined);
    match pair.reset {
        // Only a reply that is too long, and may not be executed again, cannot be carried on.
        Some(why) => {
            assert_eq!(why, Why::PartlySent);
            let next = pair.answered();
            assert!(pair.is_streamed(next), "exchange {next} could have been carried on");
            pair.expect_a_clean_prefix();
        }
        None => pair.expect_exactly_one_reply_each(),
    }
    assert!(pair.log.close(&FLOW));
    assert_eq!(pair.log.bytes(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Whenever the primary dies, each request gets exactly one reply, byte-identical where it was
    /// seen before; what was logged whole is not executed again.
    #[test]
    fn each_request_has_one_reply_whenever_the_primary_dies(
        exchanges in any_exchanges(),
        excess in prop_oneof![Just(Excess::Stream), Just(Excess::Regenerate)],
        pipelined: bool,
        seed: u64,
        steps in 0usize..700,
    ) {
        check_death(exchanges, excess, pipelined, seed, steps);
    }

    /// The same, where a part of a long reply is missing in the log and others wait behind it.
    #[test]
    fn each_request_has_one_reply_whenever_the_primary_dies_with_a_hole(
        long in any_long_exchange(),
        exchanges in any_exchanges(),
        excess in prop_oneof![Just(Excess::Stream), Just(Excess::Regenerate)],
        seed: u64,
        steps in 100usize..700,
    ) {
        let exchanges = [vec![long], exchanges].concat();
        check_death(exchanges, excess, true, seed, steps);
    }

    /// With nobody dead, or with a dead backup, nothing is executed twice, and nothing stays.
    #[test]
    fn each_request_is_executed_once_as_long_as_the_primary_lives(
        exchanges in any_exchanges(),
        pipelined: bool,
        backup_dies: bool,
        seed: u64,
        steps in 0usize..700,
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pair = Pair::new(exchanges, policy(Excess::Stream));
        let empty = pair.log.bytes();
        play(&mut pair, pipelined, steps, &mut random);
        if backup_dies {
            pair.kill_backup();
        }
        pair.finish(pipelined);
        pair.expect_exactly_one_reply_each();
        for exchange in 0..pair.exchanges.len() {
            prop_assert_eq!(pair.executions_of(exchange), 1);
        }
        if !backup_dies {
            // What stays is the framing's own list of requests.
            let kept = pair.log.bytes() - empty;
            prop_assert!(kept <= 512, "{} B are kept when all is acknowledged", kept);
        }
    }
}

/// The smallest steps there are, in an order in which each stage runs ahead of the next; the primary
/// dies behind each of them.
fn kill_at_every_byte(exchanges: &[Exchange], pipelined: bool) {
    let mut executed_twice = 0;
    for step in 0.. {
        let mut pair = Pair::new(exchanges.to_vec(), policy(Excess::Stream));
        if !byte_by_byte(&mut pair, pipelined, step) {
            assert!(step > 100, "it ended after {step} steps");
            break;
        }
        pair.kill_primary();
        pair.finish(pipelined);
        pair.expect_exactly_one_reply_each();
        executed_twice += usize::from(pair.executions.len() > pair.exchanges.len());
    }
    assert!(executed_twice > 0, "no death was early enough");
}

/// False if all was done before so many steps.
fn byte_by_byte(pair: &mut Pair, pipelined: bool, steps: usize) -> bool {
    let mut left = steps;
    let mut step = |done: bool| {
        left -= usize::from(done && left > 0);
        left == 0
    };
    if steps == 0 {
        return true;
    }
    loop {
        let begin = pair.client_begins();
        let until = if pipelined { usize::MAX } else { pair.end_of_current() };
        let sent = pair.client_sends(begin..until.min(begin + 1), Not);
        if step(sent) {
            return true;
        }
        let mut progress = sent;
        for part in [
            Pair::server_acks as fn(&mut Pair, Lost) -> bool,
            |pair, _| pair.server_writes(1),
            |pair, lost| pair.primary_ships(1, lost),
            Pair::order_arrives,
            |pair, lost| pair.server_sends(true, lost),
            Pair::client_acks,
        ] {
            let done = part(pair, Not);
            progress |= done;
            if step(done) {
                return true;
            }
        }
        if !progress {
            return false;
        }
    }
}

#[test]
fn one_reply_whatever_byte_was_the_last() {
    let exchanges = [
        Exchange::post(5, Answer::Length(12)),
        Exchange::get(Answer::Chunked(10)),
        Exchange::expecting_post(4, Answer::NoContent),
        Exchange::get(Answer::UntilClose(20)),
    ];
    kill_at_every_byte(&exchanges, false);
}

#[test]
fn one_reply_whatever_byte_was_the_last_with_pipelining() {
    let exchanges = [
        Exchange::fixed(Answer::Length(12)),
        Exchange::chunked_post(5, Answer::Length(12)),
        Exchange::head(7),
        Exchange::get(Answer::Closing(3)),
    ];
    kill_at_every_byte(&exchanges, true);
}
