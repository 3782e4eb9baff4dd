//! The recovery tables of CoRAL (Aghdaie and Tamir), row by row, with real hosts, a real server and
//! real TCP: a customer of the shop buys, in the phase that the row names a host dies or a frame is
//! lost, and he must have exactly one reply to each request, and each request one execution, unless
//! the row says otherwise. `crates/replies/tests/coral.rs` plays the same rows on a model.

use std::time::Duration;

use demo::pair::other;
use demo::shop::{self, Audit, Customer, Kind, Reign, Request, dial_from, read_logs};
use e2e::{How, PATIENCE, Scenario, Stage, undisturbed};
use lab::{Armed, FrameFilter, Link, Transport, Trip, Way};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How many pages are asked for until a frame passes that only some of them make.
const MOST_PAGES: usize = 100;
/// Orders between the nodes: their protocol is one for experiments (RFC 3692).
const ORDER: FrameFilter = FrameFilter { transport: Some(Transport::Other(253)), ..TCP };

/// Segments with data, to the service.
const REQUEST: FrameFilter = FrameFilter { payload: Some(true), ..TO_SERVICE };
/// Acknowledgements and nothing else, to the service.
const ACK: FrameFilter = FrameFilter { payload: Some(false), without: CONTROL, ..TO_SERVICE };
/// Segments with data, of the service.
const REPLY: FrameFilter = FrameFilter { payload: Some(true), ..OF_SERVICE };
/// Acknowledgements and nothing else, of the service.
const SERVER_ACK: FrameFilter =
    FrameFilter { payload: Some(false), without: CONTROL, ..OF_SERVICE };
/// Segments with data, of anybody: what a server writes goes to the backup in one way or another.
const DATA: FrameFilter = FrameFilter { payload: Some(true), ..TCP };

const TCP: FrameFilter = FrameFilter {
    version: None,
    transport: Some(Transport::Tcp),
    source: None,
    destination: None,
    flags: 0,
    without: 0,
    payload: None,
};
const TO_SERVICE: FrameFilter = FrameFilter { destination: Some(80), ..TCP };
const OF_SERVICE: FrameFilter = FrameFilter { source: Some(80), ..TCP };
const CONTROL: u8 = FrameFilter::SYN | FrameFilter::FIN | FrameFilter::RST;

/// A cable's end, and which way of it.
type At = (&'static str, Link, Way);

/// A customer who has bought once.
struct Row {
    stage: Stage,
    customer: Customer,
    primary: &'static str,
}

impl Row {
    fn begin() -> Row {
        let stage = Scenario::new().service(shop::service()).size(50_000).idle(0).rate(1000).up();
        let dial = dial_from(stage.client(), stage.pair.at(), PATIENCE);
        let customer = Customer::connect(&dial, PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
        let primary = stage.primary();
        let mut row = Row { stage, customer, primary };
        row.buys();
        row
    }

    fn backup(&self) -> &'static str {
        other(self.primary)
    }

    /// On the next such frame at this cable's end `victim` dies, or the frame is lost, or both.
    fn arm(
        &self,
        (host, link, way): At,
        frame: FrameFilter,
        lost: bool,
        victim: Option<&str>,
    ) -> Armed {
        self.stage.arm(&Trip {
            link: format!("{host}.{}", link.name()),
            way,
            frame,
            nth: 1,
            swallow: lost,
            victims: victim.iter().map(|&name| name.to_owned()).collect(),
            kill: victim.is_some(),
        })
    }

    #[track_caller]
    fn trips(&self, armed: &Armed) {
        assert!(self.stage.has_tripped(armed, PATIENCE), "the frame did not pass");
    }

    fn asks(&mut self, kind: Kind) -> Request {
        let request = self.customer.request(kind);
        self.says(&request.bytes());
        request
    }

    fn says(&mut self, piece: &[u8]) {
        self.customer.say(piece).expect("the connection takes it");
    }

    /// Both nodes have what was said.
    fn is_heard(&self) {
        let heard = || self.customer.is_heard().expect("the connection is there");
        self.stage.eventually("all is acknowledged", heard);
    }

    /// The instance that has made the reply.
    #[track_caller]
    fn hears(&mut self, request: &Request) -> String {
        match self.customer.hear(request) {
            Ok(receipt) => receipt.instance.clone(),
            Err(failure) => panic!("{failure:?}"),
        }
    }

    #[track_caller]
    fn buys(&mut self) -> String {
        let request = self.asks(Kind::Buy);
        self.hears(&request)
    }

    /// Asks for pages of many lengths until the frame has passed; who has made the last one.
    #[track_caller]
    fn asks_until(&mut self, armed: &Armed) -> String {
        for _ in 0..MOST_PAGES {
            let request = self.asks(Kind::Page);
            let instance = self.hears(&request);
            if self.stage.has_tripped(armed, Duration::ZERO) {
                return instance;
            }
        }
        panic!("the frame did not pass in {MOST_PAGES} pages");
    }

    /// He buys once more. Each of his requests has one reply, which its last execution has made, and
    /// `twice` of them were executed twice.
    #[track_caller]
    fn ends(mut self, twice: usize) {
        self.buys();
        let heard = self.stage.heard();
        let reigns = Reign::of(self.primary, heard.iter().map(|(node, event)| (*node, event)));
        let executions = read_logs(self.stage.pair.lab.dir()).unwrap_or_else(|e| panic!("{e:#}"));
        let notes = self.customer.leave();
        let audit = Audit::new(std::slice::from_ref(&notes), &executions, &[reigns]);
        assert!(audit.faults.is_empty(), "{:#?}", audit.faults);
        assert_eq!(audit.confirmed(), notes.sent.len());
        assert_eq!(audit.twice.len(), twice, "{:#?}", audit.twice);
    }

    /// The same, and whoever served has served all along.
    #[track_caller]
    fn ends_without_a_failover(self) {
        self.stage.expect_no("suspected", 0);
        self.ends(0);
    }
}

fn half(request: &Request) -> (Vec<u8>, Vec<u8>) {
    let mut first = request.bytes();
    let rest = first.split_off(first.len() / 2);
    (first, rest)
}

// Table 1: recovery from a host's death.

#[test]
fn table_1_backup_dies_after_it_received_an_incomplete_request() {
    undisturbed(|| {
        let mut row = Row::begin();
        let request = row.customer.request(Kind::Buy);
        let (first, rest) = half(&request);
        row.says(&first);
        row.is_heard();
        // It has a byte more than it passed on.
        let backup = row.backup();
        let at = (backup, Link::Service, Way::ToHost);
        let armed = row.arm(at, REQUEST, false, Some(backup));
        row.says(&rest[..1]);
        row.trips(&armed);
        row.says(&rest[1..]);
        row.hears(&request);
        row.ends(0);
    });
}

#[test]
fn table_1_backup_dies_after_it_received_a_request_and_before_it_relayed_all_of_it() {
    undisturbed(|| {
        let mut row = Row::begin();
        let request = row.customer.request(Kind::Buy);
        let (first, rest) = half(&request);
        row.says(&first);
        row.is_heard();
        let backup = row.backup();
        let armed = row.arm((backup, Link::Service, Way::ToHost), REQUEST, false, Some(backup));
        row.says(&rest);
        row.trips(&armed);
        row.hears(&request);
        row.ends(0);
    });
}

#[test]
fn table_1_backup_dies_after_it_relayed_a_request() {
    undisturbed(|| {
        let mut row = Row::begin();
        let backup = row.backup();
        let armed = row.arm((backup, Link::Cluster, Way::FromHost), REQUEST, false, Some(backup));
        let request = row.asks(Kind::Buy);
        row.trips(&armed);
        row.hears(&request);
        row.ends(0);
    });
}

#[test]
fn table_1_backup_dies_between_requests() {
    undisturbed(|| {
        let mut row = Row::begin();
        row.stage.kill(row.backup(), How::Host);
        row.buys();
        row.ends(0);
    });
}

#[test]
fn table_1_primary_dies_after_a_request_and_before_it_acknowledged_the_last_of_it() {
    undisturbed(|| {
        let mut row = Row::begin();
        let primary = row.primary;
        let armed = row.arm((primary, Link::Cluster, Way::ToHost), REQUEST, true, Some(primary));
        let request = row.asks(Kind::Buy);
        row.trips(&armed);
        let instance = row.hears(&request);
        assert!(instance.starts_with(row.backup()), "{instance} has made it");
        row.ends(0);
    });
}

/// The one row in which a request is executed twice: nobody knows what the dead server did.
#[test]
fn table_1_primary_dies_after_it_acknowledged_a_request_and_before_its_reply_is_logged() {
    undisturbed(|| {
        let mut row = Row::begin();
        let primary = row.primary;
        // The request is acknowledged, and not executed yet.
        let host = row.stage.pair.lab.host(primary).unwrap();
        let servers = host.processes().unwrap().into_iter().filter(|p| p.matches("gunicorn"));
        let servers: Vec<Pid> = servers.map(|p| Pid::from_raw(p.pid as i32)).collect();
        assert!(!servers.is_empty());
        servers.iter().for_each(|&server| kill(server, Signal::SIGSTOP).unwrap());
        let request = row.asks(Kind::Buy);
        row.is_heard();
        let armed = row.arm((primary, Link::Cluster, Way::FromHost), DATA, true, Some(primary));
        servers.iter().for_each(|&server| kill(server, Signal::SIGCONT).unwrap());
        row.trips(&armed);
        let instance = row.hears(&request);
        assert!(instance.starts_with(row.backup()), "{instance} has made it");
        row.ends(1);
    });
}

#[test]
fn table_1_primary_dies_after_a_reply_is_logged_and_before_it_is_sent() {
    undisturbed(|| {
        let mut row = Row::begin();
        let primary = row.primary;
        // The first segment of a reply that the primary itself sends, since it is a long one.
        let armed = row.arm((primary, Link::Service, Way::FromHost), REPLY, true, Some(primary));
        let instance = row.asks_until(&armed);
        assert!(instance.starts_with(primary), "{instance} has made it");
        row.ends(0);
    });
}

#[test]
fn table_1_primary_dies_between_requests() {
    undisturbed(|| {
        let mut row = Row::begin();
        row.stage.kill(row.primary, How::Host);
        let instance = row.buys();
        assert!(instance.starts_with(row.backup()), "{instance} has made it");
        row.ends(0);
    });
}

// Table 2: recovery from a lost message.

/// The first such frame of a purchase is lost.
#[track_caller]
fn a_purchase_loses(at: fn(&Row) -> At, frame: FrameFilter) {
    undisturbed(|| {
        let mut row = Row::begin();
        let armed = row.arm(at(&row), frame, true, None);
        let request = row.asks(Kind::Buy);
        row.trips(&armed);
        row.hears(&request);
        row.ends_without_a_failover();
    });
}

/// The first such frame is lost that comes of pages of many lengths.
#[track_caller]
fn a_page_loses(at: fn(&Row) -> At, frame: FrameFilter) {
    undisturbed(|| {
        let mut row = Row::begin();
        let armed = row.arm(at(&row), frame, true, None);
        row.asks_until(&armed);
        row.ends_without_a_failover();
    });
}

#[test]
fn table_2_client_data_is_lost_on_its_way_to_the_backup() {
    a_purchase_loses(|row| (row.backup(), Link::Service, Way::ToHost), REQUEST);
}

#[test]
fn table_2_client_data_is_lost_on_its_way_from_the_backup_to_the_primary() {
    a_purchase_loses(|row| (row.primary, Link::Cluster, Way::ToHost), REQUEST);
}

#[test]
fn table_2_server_ack_is_lost_on_its_way_to_the_client() {
    undisturbed(|| {
        let mut row = Row::begin();
        let request = row.customer.request(Kind::Buy);
        let (first, rest) = half(&request);
        let armed = row.arm((row.primary, Link::Service, Way::FromHost), SERVER_ACK, true, None);
        row.says(&first);
        row.trips(&armed);
        row.is_heard();
        row.says(&rest);
        row.hears(&request);
        row.ends_without_a_failover();
    });
}

#[test]
fn table_2_server_data_is_lost_on_its_way_to_the_backup() {
    a_purchase_loses(|row| (row.primary, Link::Cluster, Way::FromHost), DATA);
}

/// The acknowledgement is the order to release a reply.
#[test]
fn table_2_server_ack_is_lost_on_its_way_from_the_backup_to_the_primary() {
    a_page_loses(|row| (row.primary, Link::Cluster, Way::ToHost), ORDER);
}

#[test]
fn table_2_server_data_is_lost_on_its_way_to_the_client() {
    a_page_loses(|row| (row.primary, Link::Service, Way::FromHost), REPLY);
}

#[test]
fn table_2_client_ack_is_lost_on_its_way_to_the_backup() {
    a_page_loses(|row| (row.backup(), Link::Service, Way::ToHost), ACK);
}

#[test]
fn table_2_client_ack_is_lost_on_its_way_from_the_backup_to_the_primary() {
    a_page_loses(|row| (row.primary, Link::Cluster, Way::ToHost), ACK);
}
