//! What clients send is as safe as what they get.

use demo::clock::Bell;
use demo::download::Download;
use demo::site::Site;
use demo::{find, hashing};
use e2e::{CLIENT, How, MB, Scenario, undisturbed};
use sha2::{Digest, Sha256};

/// MiB of one flow in the journal: more than the largest upload.
const FLOW_BUDGET_MIB: u32 = 600;

/// Uploads the site's large file; the primary fails when its server's host has seen about half.
fn upload(size: u64, how: How) {
    let stage = Scenario::new()
        .service(hashing::service(FLOW_BUDGET_MIB))
        .size(size)
        .idle(0)
        .rate(1000)
        .up();
    let file = stage.pair.site.root().join(&Site::LARGE[1..]).display().to_string();
    let url = format!("http://{}/", stage.pair.at());
    let curl = find::program("curl", "curl").unwrap().display().to_string();
    let words = [
        &curl,
        "-q",
        "-sS",
        "--fail",
        "--noproxy",
        "*",
        "-H",
        "Expect:",
        "--max-time",
        "120",
        "-T",
        &file,
        &url,
    ];
    let bell = Bell::default();
    let words = words.map(str::to_owned);
    let upload = Download::run(stage.client(), &words, &bell).unwrap_or_else(|e| panic!("{e:#}"));

    let host = stage.pair.lab.host(CLIENT).unwrap();
    let sent = || host.in_netns(sent_bytes).unwrap_or_else(|e| panic!("{e}"));
    let before = sent();
    stage.eventually("half of the upload has been sent", || sent() - before >= size / 2);
    assert!(!upload.ended(), "the upload was over before the failure");
    let victim = stage.primary();
    let killed_ns = stage.kill(victim, how);

    let outcome = upload.finish().unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(outcome.error, None);
    let answer: String = stage.pair.site.sha256.iter().map(|b| format!("{b:02x}")).collect();
    let expected: [u8; 32] = Sha256::digest(&answer).into();
    assert_eq!((outcome.bytes, outcome.sha256), (64, expected), "the server's hash is wrong");
    stage.expect_took_over(victim, how, killed_ns);
}

/// Bytes that this namespace's service interface has sent.
fn sent_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find_map(|l| l.trim().strip_prefix("svc0:")).unwrap();
    line.split_whitespace().nth(8).unwrap().parse().unwrap()
}

#[test]
fn a_large_upload_survives_the_host() {
    undisturbed(|| {
        upload(500 * MB, How::Host);
    });
}

#[test]
fn an_upload_survives_the_server() {
    undisturbed(|| {
        upload(100 * MB, How::Crash);
    });
}

#[test]
fn an_upload_survives_the_daemon() {
    undisturbed(|| {
        upload(100 * MB, How::Daemon);
    });
}
