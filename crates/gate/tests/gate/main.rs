//! The gate with real servers: what is held does not leave, what is released leaves exactly, in
//! order, with the end behind the last byte. Root is needed (`make test`).

mod bench;
mod nginx;

use std::io::{ErrorKind, Read};

use bench::{Bench, HOLD, addresses, eventually};
use datapath::{Counter, Output, Role};

#[test]
fn every_way_to_write_is_held_and_released_exactly() {
    let bench = Bench::new();
    let (mut server, mut client) = bench.conversation();
    let mut at = 0;
    for how in ["send", "write", "writev", "sendmsg", "sendfile", "splice"] {
        server.expect(&format!("{how} 40001"), "ok");
        at += 40_001;
        client.captured(at);
        // TCP's own timer has tried, too.
        bench.refused_again(1);
        client.hears_nothing();
        client.release(at);
        client.hears(at);
    }
}

#[test]
fn both_address_families_are_held() {
    let bench = Bench::new();
    for address in addresses(&bench.lab) {
        let mut server = bench.server(address);
        let mut client = bench.connect(address);
        server.expect("accept", "ok");
        server.expect("send 5000", "ok");
        client.captured(5000);
        bench.refused_again(1);
        client.hears_nothing();
        client.release(5000);
        client.hears(5000);
        server.expect("shutdown", "ok");
        let end = client.ended(5000).seq(5001);
        bench.orders.release(&client.flow, end).unwrap();
        client.hears_the_end();
        server.child.kill().unwrap();
        bench.survives(&mut server);
    }
}

/// The trap of every gate that diverts writes: the kernel ends the stream at once, whatever is held.
#[test]
fn the_end_waits_with_the_bytes_in_front_of_it() {
    for end in ["shutdown", "close", "crash"] {
        let bench = Bench::new();
        let (mut server, mut client) = bench.conversation();
        server.expect("send 1000", "ok");
        server.expect("sendfile 30000", "ok");
        server.tell(end);
        if end == "crash" {
            bench.survives(&mut server);
        }
        client.captured(31_000);
        client.ended(31_000);
        bench.refused_again(2);
        client.hears_nothing();
        client.release(31_001);
        client.hears(31_000);
        client.hears_the_end();
    }
}

#[test]
fn the_end_is_held_on_its_own_as_well() {
    for end in ["shutdown", "close", "crash"] {
        let bench = Bench::new();
        let (mut server, mut client) = bench.conversation();
        server.expect("send 5000", "ok");
        client.captured(5000);
        client.release(5000);
        client.hears(5000);
        server.tell(end);
        if end == "crash" {
            bench.survives(&mut server);
        }
        client.ended(5000);
        bench.refused_again(2);
        client.hears_nothing();
        client.release(5001);
        client.hears_the_end();
    }
}

/// Exactness goes before speed: a segment across the edge stays whole.
#[test]
fn an_edge_inside_a_segment_waits_for_the_segments_end() {
    let bench = Bench::new();
    let (mut server, mut client) = bench.conversation();
    server.expect("send 600", "ok");
    server.expect("send 600", "ok");
    client.captured(1200);
    client.release(700);
    bench.refused_again(1);
    client.hears_nothing();
    assert!(bench.counters.get(Counter::Straddling) > 0);
    client.release(1200);
    client.hears(1200);
}

#[test]
fn a_half_closed_server_still_hears_its_client() {
    use std::io::Write;

    let bench = Bench::new();
    let (mut server, mut client) = bench.conversation();
    server.expect("send 100", "ok");
    server.expect("shutdown", "ok");
    client.ended(100);
    client.stream.write_all(&[7; 12]).unwrap();
    server.expect("read", "12");
    client.release(101);
    client.hears(100);
    client.hears_the_end();
}

#[test]
fn a_server_that_outruns_its_release_is_slowed_by_its_socket_alone() {
    let bench = Bench::new();
    let (mut server, mut client) = bench.conversation();
    let taken: usize = server.ask("fill").parse().expect("a number, not an error");
    assert!(taken >= HOLD as usize, "the budget may be used: {taken}");
    // One write may go over the budget, no more.
    assert!(taken <= HOLD as usize + 65_536, "the budget holds: {taken}");
    client.captured(taken);
    // Whatever is released makes room for as much again.
    client.release(taken);
    client.hears(taken);
    let more: usize = eventually("there is room again", || {
        let more: usize = server.ask("fill").parse().expect("a number, not an error");
        (more > taken).then_some(more)
    });
    client.captured(more);
    client.release(more);
    client.hears(more);
}

/// Whoever sizes `hold_bytes` must double it: the reply of such a server would never become whole.
#[test]
fn a_server_that_asks_before_it_writes_may_use_half_of_its_budget() {
    let bench = Bench::new();
    let (mut server, client) = bench.conversation();
    let taken: usize = server.ask("fill_asking 4096").parse().expect("a number, not an error");
    let half = HOLD as usize / 2;
    assert!((half..half + 4096).contains(&taken), "{taken} of {HOLD}");
    client.captured(taken);
}

/// Whatever the client's window and the server's writes are like: a reply that is to be whole before
/// it leaves must find room in the socket, or it waits for ever.
#[test]
fn a_send_buffer_as_large_as_needed_takes_all_that_may_be_held() {
    // Buffers of the client's, in bytes: the smallest there are, and the kernel's own choice.
    for buffers in [Some("2304 2304 2304"), None] {
        for write in [1, 1000, 65_536] {
            let bench = Bench::with(|settings| {
                settings.gate.send_buffer = Some(settings.gate.wmem_max_needed());
            });
            let client = bench.lab.host("client").unwrap();
            let shrink = |bytes| std::fs::write("/proc/sys/net/ipv4/tcp_rmem", bytes);
            if let Some(bytes) = buffers {
                client.in_netns(|| shrink(bytes)).unwrap().expect("the client's buffers");
            }
            let (mut server, _client) = bench.conversation();
            let taken: usize = server.ask(&format!("fill {write}")).parse().expect("a number");
            assert!(taken >= HOLD as usize, "{buffers:?}, writes of {write}: {taken}");
        }
    }
}

/// Writes that are cut short are captured beyond what TCP took; the record that follows says so.
#[test]
fn a_server_that_does_not_block_loses_and_repeats_nothing() {
    const SIZE: usize = 12 << 20;
    let bench = Bench::new();
    let (mut server, mut client) = bench.conversation();
    let taken: usize = server.ask("fill").parse().expect("a number, not an error");
    client.captured(taken);
    server.expect(&format!("stream {SIZE}"), "ok");
    bench.release_at_once();
    client.release(taken);
    client.hears(SIZE);
    assert_eq!(server.line(), "finished");
    client.captured(SIZE);
    // Or else this has not happened here.
    assert!(bench.counters.get(Counter::CutShort) > 0);
}

#[test]
fn a_server_that_blocks_goes_on_with_the_release() {
    const SIZE: usize = 12 << 20;
    for how in ["send", "sendfile"] {
        let bench = Bench::new();
        let (mut server, mut client) = bench.conversation();
        server.expect(&format!("background {how} {SIZE}"), "ok");
        eventually("the server has filled its budget", || {
            (bench.story(&client.flow).bytes.len() >= HOLD as usize).then_some(())
        });
        bench.refused_again(1);
        client.hears_nothing();
        // It blocks: what is captured stands still while TCP tries again and again.
        let held = bench.story(&client.flow).bytes.len();
        bench.refused_again(2);
        assert_eq!(bench.story(&client.flow).bytes.len(), held, "{how} is blocked");
        assert!(held <= HOLD as usize + (1 << 20), "{how}: {held} bytes are held");
        bench.release_at_once();
        client.release(held);
        client.hears(SIZE);
        assert_eq!(server.line(), "finished");
        client.captured(SIZE);
    }
}

#[test]
fn an_edge_that_steps_back_changes_nothing() {
    let bench = Bench::new();
    let (mut server, mut client) = bench.conversation();
    server.expect("send 2000", "ok");
    client.captured(2000);
    client.release(2000);
    client.hears(2000);
    client.release(10);
    server.expect("send 1000", "ok");
    client.captured(3000);
    bench.refused_again(1);
    client.hears_nothing();
    client.release(3000);
    client.hears(3000);
}

#[test]
fn an_opened_gate_lets_everything_out_and_captures_no_more() {
    let bench = Bench::new();
    let (mut server, mut client) = bench.conversation();
    server.expect("send 2000", "ok");
    client.captured(2000);
    bench.orders.open(&client.flow).unwrap();
    client.hears(2000);
    server.expect("background sendfile 1000000", "ok");
    client.hears(1_002_000);
    assert_eq!(server.line(), "finished");
    server.expect("close", "ok");
    client.hears_the_end();
    client.captured(2000);
}

#[test]
fn connections_that_began_without_a_backup_are_left_alone() {
    let bench = Bench::new();
    bench.switchboard.set_role(1, Role::Primary { duplex: false });
    let (mut server, mut client) = bench.conversation();
    bench.switchboard.set_role(1, Role::Primary { duplex: true });
    server.expect("send 2000", "ok");
    client.hears(2000);
    assert_eq!(bench.counters.get(Counter::HeldFlows), 0);
    assert!(bench.story(&client.flow).start.is_none());
}

/// What was held leaves at once when the backup is gone, also what a server has left behind that has
/// closed its socket.
#[test]
fn what_was_held_leaves_when_the_backup_is_gone() {
    for end in ["shutdown", "close"] {
        let bench = Bench::new();
        let table = bench.table();
        let (mut server, mut client) = bench.conversation();
        server.expect("send 5000", "ok");
        server.expect(end, "ok");
        client.ended(5000);
        bench.refused_again(1);
        client.hears_nothing();
        bench.switchboard.set_role(2, Role::Primary { duplex: false });
        assert_eq!(table.gated(), [client.flow], "{end}");
        bench.orders.open(&client.flow).unwrap();
        assert_eq!(bench.counters.get(Counter::Orders), 1, "{end}: a walk finds its socket");
        client.hears(5000);
        client.hears_the_end();
    }
}

/// A connection that has left a backup's sight is no other backup's either.
#[test]
fn a_gate_that_met_no_backup_stays_open() {
    let bench = Bench::new();
    // The first thing that meets the gate without a backup is a segment, and a write.
    for held in [true, false] {
        let mut server = bench.python();
        let mut client = bench.connect(addresses(&bench.lab)[0]);
        server.expect("accept", "ok");
        if held {
            server.expect("send 1000", "ok");
            client.captured(1000);
            bench.refused_again(1);
        }
        bench.switchboard.set_role(2, Role::Primary { duplex: false });
        if !held {
            server.expect("send 1000", "ok");
        }
        client.hears(1000);
        bench.switchboard.set_role(3, Role::Primary { duplex: true });
        server.expect("send 1000", "ok");
        client.hears(2000);
        let captured = bench.story(&client.flow).bytes.len();
        assert_eq!(captured, if held { 1000 } else { 0 }, "no write is captured any more");
        server.child.kill().unwrap();
        bench.survives(&mut server);
    }
}

/// A full ring costs a flow its protection, not its connection, and nothing leaves because of it.
#[test]
fn output_that_finds_the_ring_full_is_held_and_reported() {
    let bench = Bench::with(|settings| {
        settings.gate.ring_bytes = 64 << 10;
    });
    let (mut server, mut client) = bench.conversation();
    // One record that the ring cannot take beside what it keeps for events.
    server.expect("send 200000", "ok");
    let story = eventually("the loss is reported", || {
        let story = bench.story(&client.flow);
        story.lost.is_some().then_some(story)
    });
    assert_eq!(story.lost, Some(story.seq(story.bytes.len())), "lost behind what was captured");
    assert_eq!(bench.counters.get(Counter::OutputLost), 1);
    bench.refused_again(1);
    client.hears_nothing();
    bench.orders.open(&client.flow).unwrap();
    client.hears(200_000);
}

#[test]
fn a_connection_that_is_reset_is_reported() {
    let bench = Bench::new();
    let (mut server, client) = bench.conversation();
    server.expect("send 2000", "ok");
    let story = client.captured(2000);
    let flow = client.flow;
    // Nothing to linger for: the client resets.
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the descriptor is open, and the option's value is a whole `linger`.
    let set = unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&client.stream),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as u32,
        )
    };
    assert_eq!(set, 0);
    drop(client);
    let over = eventually("the end is reported", || bench.story(&flow).over);
    assert_eq!(over, Output::Aborted { flow, seq: story.seq(2000) });
    // Orders for what is gone are counted, and harmless.
    bench.orders.release(&flow, story.seq(2000)).unwrap();
    assert_eq!(bench.counters.get(Counter::OrdersStray), 1);
}

#[test]
fn a_connection_that_ends_is_reported_once_it_is_over() {
    let bench = Bench::new();
    let (mut server, mut client) = bench.conversation();
    server.expect("send 10", "ok");
    server.expect("close", "ok");
    let story = client.ended(10);
    client.release(11);
    client.hears(10);
    client.hears_the_end();
    assert_eq!(bench.story(&client.flow).over, None, "the client has not closed yet");
    let flow = client.flow;
    drop(client);
    let over = eventually("the end is reported", || bench.story(&flow).over);
    assert_eq!(over, Output::Gone { flow, seq: story.seq(11) });
}

/// A release wakes nobody on the primary, whoever decides on it.
#[test]
fn the_backup_releases_by_a_frame() {
    let bench = Bench::new();
    let backup = bench.backup();
    for address in addresses(&bench.lab) {
        let mut server = bench.server(address);
        let mut client = bench.connect(address);
        server.expect("accept", "ok");
        server.expect("send 5000", "ok");
        let story = client.captured(5000);
        bench.refused_again(1);
        client.hears_nothing();
        backup.orders.release(&client.flow, story.seq(5000)).unwrap();
        client.hears(5000);
        server.expect("send 1000", "ok");
        client.captured(6000);
        backup.orders.open(&client.flow).unwrap();
        client.hears(6000);
        server.expect("sendfile 100000", "ok");
        client.hears(106_000);
        client.captured(6000);
        server.child.kill().unwrap();
        bench.survives(&mut server);
    }
    assert_eq!(backup.counters.get(Counter::OrdersSent), 4);
    assert_eq!(bench.counters.get(Counter::Orders), 4);
}

/// Frames are believed by the Ethernet address that they come from, as relayed segments are.
#[test]
fn a_strangers_order_is_not_carried_out() {
    let bench = Bench::new();
    let backup = bench.backup();
    let (mut server, mut client) = bench.conversation();
    server.expect("send 5000", "ok");
    let story = client.captured(5000);
    let peer = bench.lab.host("client").unwrap().mac(lab::Link::Service);
    bench.switchboard.set_peer_macs(peer, [2, 0, 0, 0, 0, 99]);
    backup.orders.open(&client.flow).unwrap();
    backup.orders.release(&client.flow, story.seq(5000)).unwrap();
    // The last one has been sent, so the node has had time for the first.
    assert_eq!(backup.counters.get(Counter::OrdersSent), 2);
    bench.refused_again(2);
    client.hears_nothing();
    assert_eq!(bench.counters.get(Counter::Orders), 0);
    client.release(5000);
    client.hears(5000);
}

/// Whatever a full socket map is worth: nobody is held who could not be released.
#[test]
fn a_connection_that_finds_no_place_is_reported_and_not_held() {
    let bench = Bench::with(|settings| settings.max_flows = 1);
    let (mut server, first) = bench.conversation();
    server.expect("send 1000", "ok");
    first.captured(1000);
    let mut second = bench.connect(addresses(&bench.lab)[0]);
    eventually("it is reported", || bench.story(&second.flow).unheld.then_some(()));
    server.expect("accept", "ok");
    server.expect("send 1000", "ok");
    second.hears(1000);
    assert_eq!(bench.counters.get(Counter::UnheldFlows), 1);
}

/// Invariant 8's other half: a dead daemon releases nothing.
#[test]
fn a_dead_daemon_releases_nothing() {
    let mut bench = Bench::new();
    let (mut server, mut stream) = {
        let (server, client) = bench.conversation();
        (server, client.stream)
    };
    server.expect("send 2000", "ok");
    bench.kill_daemon();
    eventually("TCP sends what nobody keeps from it any more, and the fence stops it", || {
        (bench.counters.get(Counter::GateFenced) >= 2).then_some(())
    });
    stream.set_nonblocking(true).unwrap();
    let heard = stream.read(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(heard, Err(ErrorKind::WouldBlock));
}

/// Refusals must not look like congestion: a thousand held replies, and the window is as it began.
#[test]
fn holding_does_not_shrink_the_congestion_window() {
    let bench = Bench::new();
    let (mut server, mut client) = bench.conversation();
    for i in 1..=200 {
        server.expect("send 3000", "ok");
        client.captured(i * 3000);
        client.release(i * 3000);
        client.hears(i * 3000);
    }
    let host = bench.lab.host("a").unwrap();
    let listed = host.command("ss").args(["-tinH", "sport", "=", ":8080"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let window = listed.split_whitespace().find_map(|word| word.strip_prefix("cwnd:"));
    let window: u32 = window.unwrap_or_else(|| panic!("no window: {listed}")).parse().unwrap();
    assert!(window >= 10, "the congestion window is {window} segments");
    assert!(!listed.contains("retrans:"), "nothing was sent twice: {listed}");
    assert!(bench.counters.get(Counter::Refused) >= 200);
}
