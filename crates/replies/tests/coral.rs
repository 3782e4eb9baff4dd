//! The recovery tables of CoRAL (Aghdaie and Tamir), row by row, on the model of `pair`.
//!
//! Table 1: which host dies, in which phase of a request. Table 2: which message is lost. What the
//! rows ask of TCP and of the gate is in the model; what they ask of the log is the log's.

mod pair;

use pair::*;
use replies::{Excess, Plan};

/// A page, a purchase and a page, none of which comes out alike twice.
fn purchase() -> Pair {
    let exchanges = vec![
        Exchange::get(Answer::Length(200)),
        Exchange::post(300, Answer::Chunked(400)),
        Exchange::get(Answer::Length(100)),
    ];
    Pair::new(exchanges, policy(Excess::Stream))
}

/// The first exchange is over; the purchase is next.
fn before_the_purchase() -> Pair {
    let mut pair = purchase();
    let first = pair.request(0);
    assert!(pair.client_sends(first, Not));
    assert!(pair.server_acks(Not));
    serve(&mut pair);
    send(&mut pair);
    assert!(pair.client_acks(Not));
    assert_eq!(pair.answered(), 1);
    pair
}

/// The whole request of the purchase has arrived at both nodes.
fn purchase_requested() -> Pair {
    let mut pair = before_the_purchase();
    let request = pair.request(1);
    assert!(pair.client_sends(request, Not));
    assert!(pair.server_acks(Not));
    assert_eq!(pair.executions_of(1), 1);
    pair
}

/// What has been requested is written, logged, and released.
fn serve(pair: &mut Pair) {
    assert!(pair.server_writes(usize::MAX));
    assert!(pair.primary_ships(usize::MAX, Not));
    assert!(pair.order_arrives(Not));
}

fn send(pair: &mut Pair) {
    assert!(pair.server_sends(true, Not));
}

/// The purchase was made so many times, and each request has one reply.
#[track_caller]
fn ends_well(mut pair: Pair, purchases: usize) {
    pair.finish(false);
    pair.expect_exactly_one_reply_each();
    assert_eq!(pair.executions_of(1), purchases);
}

// Table 1: recovery from a host's death.

#[test]
fn table_1_backup_dies_after_it_received_an_incomplete_request() {
    let mut pair = before_the_purchase();
    let request = pair.request(1);
    // The backup has a byte more than it passed on.
    let half = request.start + 100;
    assert!(pair.client_sends(request.start..half, Not));
    assert!(pair.server_acks(Not));
    assert!(pair.client_sends(half..half + 1, SecondLeg));
    assert_eq!(pair.client_begins(), half + 1);
    pair.kill_backup();
    ends_well(pair, 1);
}

#[test]
fn table_1_backup_dies_after_it_received_a_request_and_before_it_relayed_all_of_it() {
    let mut pair = before_the_purchase();
    let request = pair.request(1);
    assert!(pair.client_sends(request.start..request.end - 10, Not));
    assert!(pair.client_sends(request.end - 10..request.end, SecondLeg));
    assert_eq!(pair.executions_of(1), 0);
    pair.kill_backup();
    ends_well(pair, 1);
}

#[test]
fn table_1_backup_dies_after_it_relayed_a_request() {
    // Before the reply is there, while it is held, and when the order to release it is lost.
    let pair = || {
        let mut pair = purchase_requested();
        assert!(pair.server_writes(usize::MAX));
        assert!(!pair.server_sends(true, Not), "it is held");
        pair
    };
    let mut early = purchase_requested();
    early.kill_backup();
    ends_well(early, 1);
    let mut held = pair();
    held.kill_backup();
    ends_well(held, 1);
    let mut logged = pair();
    assert!(logged.primary_ships(usize::MAX, Not));
    logged.kill_backup();
    ends_well(logged, 1);
}

#[test]
fn table_1_backup_dies_between_requests() {
    let mut pair = before_the_purchase();
    pair.kill_backup();
    ends_well(pair, 1);
}

#[test]
fn table_1_primary_dies_after_a_request_and_before_it_acknowledged_the_last_of_it() {
    // An incomplete request.
    let mut pair = before_the_purchase();
    let request = pair.request(1);
    assert!(pair.client_sends(request.start..request.start + 100, Not));
    pair.kill_primary();
    ends_well(pair, 1);
    // A whole one, which the primary has executed: nobody knows.
    let mut pair = before_the_purchase();
    let request = pair.request(1);
    assert!(pair.client_sends(request, Not));
    assert_eq!(pair.executions_of(1), 1);
    pair.kill_primary();
    ends_well(pair, 2);
}

#[test]
fn table_1_primary_dies_after_it_acknowledged_a_request_and_before_its_reply_is_logged() {
    // Nothing of the reply is logged.
    let mut pair = purchase_requested();
    assert!(pair.server_writes(usize::MAX));
    pair.kill_primary();
    ends_well(pair, 2);
    // All of it but the last byte.
    let mut pair = purchase_requested();
    while pair.server_writes(1) {
        if pair.server_is_done() {
            break;
        }
        assert!(pair.primary_ships(1, Not));
    }
    pair.kill_primary();
    ends_well(pair, 2);
}

#[test]
fn table_1_primary_dies_after_a_reply_is_logged_and_before_it_is_sent() {
    // The order to release it was on its way.
    let mut pair = purchase_requested();
    assert!(pair.server_writes(usize::MAX));
    assert!(pair.primary_ships(usize::MAX, Not));
    pair.kill_primary();
    ends_well(pair, 1);
    // The client has it, and nobody knows.
    let mut pair = purchase_requested();
    serve(&mut pair);
    send(&mut pair);
    assert_eq!(pair.answered(), 2);
    let Some(Plan::Adopt { logged, .. }) = pair.log.plan(&FLOW) else { panic!("it is carried on") };
    assert!(logged > 400);
    pair.kill_primary();
    ends_well(pair, 1);
    // The backup knows.
    let mut pair = purchase_requested();
    serve(&mut pair);
    send(&mut pair);
    assert!(pair.client_acks(SecondLeg));
    let plan = pair.log.plan(&FLOW);
    assert!(matches!(plan, Some(Plan::Adopt { logged: 0, swallow: 0, .. })), "{plan:?}");
    pair.kill_primary();
    ends_well(pair, 1);
}

#[test]
fn table_1_primary_dies_between_requests() {
    let mut pair = before_the_purchase();
    pair.kill_primary();
    ends_well(pair, 1);
}

// Table 2: recovery from a lost message.

#[test]
fn table_2_client_data_is_lost_on_its_way_to_the_backup() {
    let mut pair = before_the_purchase();
    let request = pair.request(1);
    assert!(pair.client_sends(request.clone(), FirstLeg));
    assert_eq!(pair.journal.instream(&FLOW).unwrap().contiguous_len(), request.start as u64);
    assert!(!pair.server_acks(Not), "the primary knows of nothing");
    ends_well(pair, 1);
}

#[test]
fn table_2_client_data_is_lost_on_its_way_from_the_backup_to_the_primary() {
    let mut pair = before_the_purchase();
    let request = pair.request(1);
    assert!(pair.client_sends(request.clone(), SecondLeg));
    assert_eq!(pair.log.instream_next(&FLOW), Some(request.end as u64), "the backup has it");
    assert!(!pair.server_acks(Not));
    // It comes again, is a duplicate here, and is passed on all the same.
    assert!(pair.client_sends(request, Not));
    assert_eq!(pair.executions_of(1), 1);
    ends_well(pair, 1);
}

#[test]
fn table_2_server_ack_is_lost_on_its_way_to_the_client() {
    let mut pair = before_the_purchase();
    let request = pair.request(1);
    assert!(pair.client_sends(request.clone(), Not));
    assert!(pair.server_acks(FirstLeg));
    // So the client sends it again, which both nodes ignore.
    assert!(pair.client_sends(request.clone(), Not));
    assert_eq!(pair.executions_of(1), 1);
    assert_eq!(pair.log.instream_next(&FLOW), Some(request.end as u64));
    ends_well(pair, 1);
}

#[test]
fn table_2_server_data_is_lost_on_its_way_to_the_backup() {
    let mut pair = purchase_requested();
    let before = pair.log.outstream_next(&FLOW);
    assert!(pair.server_writes(usize::MAX));
    assert!(pair.primary_ships(usize::MAX, FirstLeg));
    assert_eq!(pair.log.outstream_next(&FLOW), before);
    assert!(!pair.order_arrives(Not), "nothing is released");
    assert!(!pair.server_sends(true, Not), "nothing leaves");
    ends_well(pair, 1);
}

#[test]
fn table_2_server_ack_is_lost_on_its_way_from_the_backup_to_the_primary() {
    // Our acknowledgement is the order to release.
    let mut pair = purchase_requested();
    assert!(pair.server_writes(usize::MAX));
    let first = pair.shipped();
    assert!(pair.primary_ships(usize::MAX, Not));
    assert!(pair.order_arrives(FirstLeg));
    assert!(!pair.server_sends(true, Not), "nothing leaves");
    // The reply may be sent to the backup again, which ignores it and says again what is released.
    let held = pair.log.bytes();
    pair.primary_ships_again(first..pair.shipped());
    assert_eq!(pair.log.bytes(), held);
    assert!(!pair.order_arrives(Not), "a duplicate is no news");
    assert!(pair.orders_are_repeated());
    assert!(pair.order_arrives(Not));
    send(&mut pair);
    ends_well(pair, 1);
}

#[test]
fn table_2_server_data_is_lost_on_its_way_to_the_client() {
    let mut pair = purchase_requested();
    serve(&mut pair);
    assert!(pair.server_sends(true, FirstLeg));
    assert_eq!(pair.answered(), 1);
    ends_well(pair, 1);
}

#[test]
fn table_2_client_ack_is_lost_on_its_way_to_the_backup() {
    let mut pair = purchase_requested();
    serve(&mut pair);
    send(&mut pair);
    assert!(pair.client_acks(FirstLeg));
    // The server sends again what the client has; the bytes are the same.
    assert!(!pair.server_sends(false, Not), "no news to the client");
    ends_well(pair, 1);
}

#[test]
fn table_2_client_ack_is_lost_on_its_way_from_the_backup_to_the_primary() {
    let mut pair = purchase_requested();
    serve(&mut pair);
    send(&mut pair);
    assert!(pair.client_acks(SecondLeg));
    let held = pair.log.bytes();
    assert!(!pair.server_sends(false, Not), "no news to the client");
    assert!(pair.client_acks(Not), "news to the primary");
    assert_eq!(pair.log.bytes(), held, "none to the backup");
    ends_well(pair, 1);
}

/// The paper's promise behind both tables, at once: any message lost, then a death.
#[test]
fn table_1_and_2_a_lost_order_and_a_death() {
    let mut pair = purchase_requested();
    assert!(pair.server_writes(usize::MAX));
    assert!(pair.primary_ships(usize::MAX, Not));
    assert!(pair.order_arrives(FirstLeg));
    pair.kill_primary();
    ends_well(pair, 1);
}
