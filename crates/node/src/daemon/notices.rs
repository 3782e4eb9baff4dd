//! The core's notices in words: an event name and fields for programs, a sentence for people.

use cluster::{HandoverReason, Link, Notice, PromoteReason, Refusal, Role, SimplexReason};
use serde_json::{Value, json};

/// Whether it is about the peer, a link or this daemon, whatever role the two have.
pub fn is_of_the_node(notice: &Notice) -> bool {
    matches!(
        notice,
        Notice::PeerHeard { .. }
            | Notice::PeerRestarted { .. }
            | Notice::Suspected { .. }
            | Notice::CutOff
            | Notice::LinkLost { .. }
            | Notice::LinkReturned { .. }
            | Notice::ServiceLinkIs { .. }
            | Notice::Paused { .. }
            | Notice::BadHeartbeat
    )
}

/// Name, sentence, fields.
pub fn describe(notice: &Notice) -> (&'static str, String, Value) {
    match *notice {
        Notice::PeerHeard { .. } => ("peer_returned", "the peer is heard".into(), json!({})),
        Notice::PeerRestarted { .. } => {
            ("peer_restarted", "the peer's daemon was restarted".into(), json!({}))
        }
        Notice::Suspected { silent_for, .. } => (
            "suspected",
            format!("the peer has been silent on both links for {} ms", ms(silent_for)),
            json!({"silent_for_ms": ms(silent_for)}),
        ),
        Notice::InDoubt { wait } => (
            "in_doubt",
            format!(
                "this node had not run just before, so the peer may have given it up: it serves \
                 after {} ms, without the old connections, or once the peer is heard",
                ms(wait)
            ),
            json!({"wait_ms": ms(wait)}),
        ),
        Notice::CutOff => (
            "cut_off",
            "nobody is heard on either link: this node may itself be cut off, so it waits for a \
             sign of life on the service link"
                .into(),
            json!({}),
        ),
        Notice::LinkLost { link } => (
            "link_lost",
            format!("the {} carries no heartbeats", link_name(link)),
            json!({"link": link_word(link)}),
        ),
        Notice::LinkReturned { link } => (
            "link_returned",
            format!("the {} works again", link_name(link)),
            json!({"link": link_word(link)}),
        ),
        Notice::ServiceLinkIs { verdict } => (
            "service_link",
            format!("this node's own service link is {verdict:?}").to_lowercase(),
            json!({"verdict": format!("{verdict:?}").to_lowercase()}),
        ),
        Notice::Promoted { epoch, reason, silent_for } => (
            "promoted",
            format!("epoch {}: taking over, since {}", epoch.0, promote_reason(reason)),
            json!({"epoch": epoch.0, "reason": format!("{reason:?}"),
                "silent_for_ms": ms(silent_for)}),
        ),
        Notice::Simplex { epoch, reason } => (
            "simplex",
            format!("epoch {}: serving without a backup, since {}", epoch.0, simplex(reason)),
            json!({"epoch": epoch.0, "reason": format!("{reason:?}")}),
        ),
        Notice::Duplex { epoch, .. } => (
            "duplex",
            format!("epoch {}: new connections are protected", epoch.0),
            json!({"epoch": epoch.0}),
        ),
        Notice::Joined { epoch } => (
            "joined",
            format!("epoch {}: following the primary", epoch.0),
            json!({"epoch": epoch.0}),
        ),
        Notice::Armed { epoch } => (
            "armed",
            format!("epoch {}: protecting the primary's new connections", epoch.0),
            json!({"epoch": epoch.0}),
        ),
        Notice::Resigned { epoch } => (
            "resigned",
            format!("epoch {}: no longer protecting", epoch.0),
            json!({"epoch": epoch.0}),
        ),
        Notice::HandingOver { epoch, reason } => (
            "switchover",
            format!("epoch {}: handing over, since {}", epoch.0, handover(reason)),
            json!({"epoch": epoch.0, "reason": format!("{reason:?}")}),
        ),
        Notice::SwitchoverRefused { reason } => (
            "switchover_refused",
            format!("cannot hand over: {}", refusal(reason)),
            json!({"reason": format!("{reason:?}")}),
        ),
        Notice::ServerCrashKept { reason } => (
            "crash_kept",
            format!("the server's connections are lost: {}", refusal(reason)),
            json!({"reason": format!("{reason:?}")}),
        ),
        Notice::TwoPrimaries { mine, theirs, yielded } => (
            "two_primaries",
            format!(
                "both nodes served at once (epochs {} and {}): a partition was taken for a death; \
                 this node {}",
                mine.0,
                theirs.0,
                if yielded { "gives way" } else { "stays" }
            ),
            json!({"mine": mine.0, "theirs": theirs.0, "yielded": yielded}),
        ),
        Notice::Superseded { mine, theirs } => (
            "superseded",
            format!("the pair went on without this node: epoch {} after {}", theirs.0, mine.0),
            json!({"mine": mine.0, "theirs": theirs.0}),
        ),
        Notice::Paused { gap } => (
            "paused",
            format!("this daemon did not run for {} ms", ms(gap)),
            json!({"gap_ms": ms(gap)}),
        ),
        Notice::SoloLeaseLost { epoch } => (
            "solo_lease_lost",
            format!("epoch {}: the lease ran out during a pause: fenced", epoch.0),
            json!({"epoch": epoch.0}),
        ),
        Notice::ArbiterRefused { epoch } => (
            "arbiter_refused",
            format!("epoch {}: the arbiter gave it to somebody else", epoch.0),
            json!({"epoch": epoch.0}),
        ),
        Notice::BadHeartbeat => {
            ("bad_heartbeat", "a heartbeat that contradicts itself was ignored".into(), json!({}))
        }
    }
}

/// A role in one word, as `status` shows it.
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Starting => "starting",
        Role::Backup { armed: true } => "backup",
        Role::Backup { armed: false } => "joining",
        Role::Primary { .. } => "primary",
        Role::Fenced => "fenced",
    }
}

pub fn role(role: Role) -> &'static str {
    match role {
        Role::Starting => "starting",
        Role::Backup { armed: true } => "backup",
        Role::Backup { armed: false } => "joining as backup",
        Role::Primary { duplex: true } => "primary with a backup",
        Role::Primary { duplex: false } => "primary without a backup",
        Role::Fenced => "fenced",
    }
}

/// Why a hand-over is refused, and what would help.
pub fn refusal(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::NotPrimary => "this node is not primary; ask the other one",
        Refusal::NoBackup => "there is no backup; wait until `steadfast status` says duplex",
        Refusal::BackupNotReady => "the backup's servers do not listen; start them first",
        Refusal::BackupServiceLinkDead => "the backup's service link is dead; mend it first",
        Refusal::BackupLeaving => "the backup is shutting down",
    }
}

fn promote_reason(reason: PromoteReason) -> &'static str {
    match reason {
        PromoteReason::PrimarySilent => "the primary is silent and its lease has run out",
        PromoteReason::HandedOver => "the primary handed over",
        PromoteReason::PrimaryRestarted => "the primary's daemon was restarted",
    }
}

fn simplex(reason: SimplexReason) -> &'static str {
    match reason {
        SimplexReason::Promoted => "it took over",
        SimplexReason::BackupSilent => "the backup is silent",
        SimplexReason::BackupResigned => "the backup no longer takes part",
        SimplexReason::BackupRestarted => "the backup's daemon was restarted",
        SimplexReason::RankedFirst => "it ranks first",
        SimplexReason::Alone => "nobody else is heard",
        SimplexReason::EpochRaised => "it served alone already",
    }
}

fn handover(reason: HandoverReason) -> &'static str {
    match reason {
        HandoverReason::UserRequest => "an operator asked",
        HandoverReason::PolicyRequest => "a policy asked",
        HandoverReason::ServerCrashed => "a server crashed",
        HandoverReason::ServiceNotReady => "its servers do not listen",
        HandoverReason::ServiceLinkDead => "its service link is dead",
        HandoverReason::Shutdown => "it shuts down",
    }
}

fn link_name(link: Link) -> &'static str {
    match link {
        Link::Service => "service link",
        Link::Cluster => "cluster link",
    }
}

fn link_word(link: Link) -> &'static str {
    match link {
        Link::Service => "service",
        Link::Cluster => "cluster",
    }
}

fn ms(ns: u64) -> u64 {
    ns / 1_000_000
}
