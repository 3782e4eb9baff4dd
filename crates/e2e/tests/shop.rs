//! A shop, no reply of which can be made twice, on a pair of nodes.

use std::time::Duration;

use demo::clock::Bell;
use demo::config::Scheme;
use demo::shop::{self, Audit, Crowd, CrowdSpec, Trouble, dial_from, read_logs};
use e2e::{How, PATIENCE, Scenario, Service};

const CLIENTS: usize = 32;
const EACH: usize = 60;

/// The control: protected as if its replies were the same each time, the shop must look broken to
/// its clients. If it does not, they would not notice what the scheme `message` does wrong either.
#[test]
fn clients_notice_that_track_is_not_for_a_shop() {
    let service = Service { scheme: Scheme::Track, ..shop::service() };
    let stage = Scenario::new().service(service).rate(1000).up();
    let bell = Bell::default();
    let spec = CrowdSpec {
        clients: CLIENTS,
        each: EACH,
        patience: Duration::from_secs(3),
        seed: 11,
        dial: dial_from(stage.client(), stage.pair.at(), PATIENCE),
    };
    let crowd = Crowd::start(&spec, &bell).unwrap_or_else(|e| panic!("{e:#}"));
    let half = || crowd.replies().iter().sum::<u64>() >= (CLIENTS * EACH / 2) as u64;
    assert!(bell.wait_until(PATIENCE, half), "half of the replies have not come");
    assert_eq!(crowd.first_failure(), None, "before anything failed");
    let victim = stage.primary();
    stage.kill(victim, How::Host);
    let notes = crowd.finish();
    let logs = read_logs(stage.pair.lab.dir()).unwrap_or_else(|e| panic!("{e:#}"));

    // Replies that go on with the bytes of another one, or are swallowed as if they had been seen.
    let troubles: Vec<Trouble> =
        notes.iter().flat_map(|n| &n.failures).map(|failure| failure.trouble).collect();
    let wrong = [Trouble::Malformed, Trouble::Mixed, Trouble::Second, Trouble::Hash];
    assert!(troubles.iter().any(|trouble| wrong.contains(trouble)), "{troubles:?}");
    // Everything is executed again, and the clients have the first one's replies.
    let audit = Audit::new(&notes, &logs, Some(victim));
    let again = audit.faults.iter().filter(|fault| fault.contains("executed 2 times")).count();
    assert!(again > 0, "{audit:#?}");
    // The oracle would say the same of the bytes: they are not judged here.
    stage.verdict();
}
