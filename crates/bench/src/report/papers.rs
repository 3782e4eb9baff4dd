//! What published systems reached, beside which of our rows it stands, and where it is written.
//!
//! Hardware, servers and decades differ. What can be compared is what each system costs against
//! the same server without it, on the machines it ran on; so nearly everything is a ratio.
//!
//! CoRAL's authors give lines: a request costs so much, and so much for each byte of its reply.
//! What they say of a length is computed from those.

use crate::curve::Mode;

/// A publication.
#[derive(Debug)]
pub struct Source {
    /// The system.
    pub system: &'static str,
    /// Authors, title, year.
    pub cited: &'static str,
}

pub static FT_TCP: Source = Source {
    system: "FT-TCP",
    cited: "Zagorodnov, Marzullo, Alvisi, Bressoud: Practical and low-overhead masking of failures \
            of TCP-based servers. ACM Transactions on Computer Systems 27(2), 2009",
};
pub static RING: Source = Source {
    system: "Ring of back-ends",
    cited: "Zhang, Abdelzaher, Stankovic: Efficient TCP connection failover in Web server \
            clusters. INFOCOM 2004",
};
pub static MULTI_CORE: Source = Source {
    system: "Multi-core checkpoints",
    cited: "Gerofi, Ishikawa: A multi-core approach to providing fault tolerance for \
            non-deterministic services",
};
pub static CORAL: Source = Source {
    system: "CoRAL",
    cited: "Aghdaie, Tamir: CoRAL: a transparent fault-tolerant Web service. Journal of Systems \
            and Software, 2009",
};
pub static RRC: Source =
    Source { system: "RRC", cited: "Checkpoint and replay of containers. USENIX ATC 2022" };
pub static PLOVER: Source = Source {
    system: "PLOVER",
    cited: "Replicated virtual machines; its figures for SSDB. NSDI 2018",
};
pub static VMWARE: Source = Source {
    system: "VMware FT",
    cited: "VMware's fault tolerance for SSDB, as PLOVER's authors measured it. NSDI 2018",
};

/// All of them, in the order of the report.
pub static SOURCES: [&Source; 7] = [&FT_TCP, &RING, &MULTI_CORE, &CORAL, &RRC, &PLOVER, &VMWARE];

/// A published figure.
#[derive(Debug)]
pub struct Figure {
    /// Who.
    pub source: &'static Source,
    /// Of what, in which mode.
    pub what: &'static str,
    /// From and to, in the comparison's unit; the same if one number was given.
    pub range: [f64; 2],
    /// Table, figure or section.
    pub place: &'static str,
}

/// What of our rows is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ours {
    /// Protected ÷ unprotected, in percent.
    Percent,
    /// Protected ÷ unprotected.
    Ratio,
    /// The row's own unit.
    Value,
    /// Protected less unprotected, in the row's own unit.
    Added,
    /// The same, in percent of the unprotected.
    AddedPercent,
    /// Of a cost, unprotected ÷ protected, in percent: how much of the work that is done unprotected
    /// can be done.
    Capacity,
}

/// Figures that mean the same.
#[derive(Debug)]
pub struct Comparison {
    /// What is compared.
    pub title: &'static str,
    /// The axis.
    pub unit: &'static str,
    /// Whether the axis is logarithmic.
    pub log: bool,
    /// What of our rows is shown.
    pub ours: Ours,
    /// What must be kept in mind.
    pub note: &'static str,
    /// Bars that stand together.
    pub groups: &'static [Group],
}

/// Bars that stand together.
#[derive(Debug)]
pub struct Group {
    /// What they have in common.
    pub name: &'static str,
    /// Our rows, and what to call each.
    pub ours: &'static [(&'static str, &'static str)],
    /// The published figures.
    pub theirs: &'static [Figure],
}

const fn figure(
    source: &'static Source,
    what: &'static str,
    range: [f64; 2],
    place: &'static str,
) -> Figure {
    Figure { source, what, range, place }
}

const fn ft_tcp(what: &'static str, percent: f64, place: &'static str) -> Figure {
    figure(&FT_TCP, what, [percent, percent], place)
}

/// All of them.
pub static COMPARISONS: [Comparison; 13] = [
    Comparison {
        title: "Bulk in, share of the unprotected throughput",
        unit: "%",
        log: false,
        ours: Ours::Percent,
        note: "Service link : cluster link, Mbit/s. FT-TCP with its best settings.",
        groups: &[
            Group {
                name: "10:10",
                ours: &[("in-10-10", "")],
                theirs: &[ft_tcp("ttcp", 86.0, "table IV"), ft_tcp("Samba", 75.0, "table V")],
            },
            Group {
                name: "10:100",
                ours: &[("in-10-100", "")],
                theirs: &[ft_tcp("ttcp", 100.0, "table IV"), ft_tcp("Samba", 100.0, "table V")],
            },
            Group {
                name: "100:100",
                ours: &[("in-100-100", "")],
                theirs: &[ft_tcp("ttcp", 85.0, "table IV"), ft_tcp("Samba", 79.0, "table V")],
            },
            Group {
                name: "100:1000",
                ours: &[("in-100-1000", "")],
                theirs: &[
                    ft_tcp("ttcp", 100.0, "table IV"),
                    ft_tcp("Samba", 95.0, "table V"),
                    figure(&MULTI_CORE, "ttcp", [99.0, 99.0], "section V.A"),
                ],
            },
            Group {
                name: "1000:1000",
                ours: &[("in-1000-1000", "")],
                theirs: &[ft_tcp("ttcp", 60.0, "table IV"), ft_tcp("Samba", 63.0, "table V")],
            },
        ],
    },
    Comparison {
        title: "Bulk out, share of the unprotected throughput",
        unit: "%",
        log: false,
        ours: Ours::Percent,
        note: "Service link : cluster link, Mbit/s. FT-TCP's ttcp had no significant overhead with \
               any links.",
        groups: &[
            Group {
                name: "10:10",
                ours: &[("out-10-10", "")],
                theirs: &[ft_tcp("ttcp", 100.0, "section 8.2"), ft_tcp("Samba", 98.0, "table VI")],
            },
            Group {
                name: "10:100",
                ours: &[("out-10-100", "")],
                theirs: &[ft_tcp("ttcp", 100.0, "section 8.2"), ft_tcp("Samba", 99.0, "table VI")],
            },
            Group {
                name: "100:100",
                ours: &[("out-100-100", "")],
                theirs: &[ft_tcp("ttcp", 100.0, "section 8.2"), ft_tcp("Samba", 93.0, "table VI")],
            },
            Group {
                name: "100:1000",
                ours: &[("out-100-1000", "")],
                theirs: &[
                    ft_tcp("ttcp", 100.0, "section 8.2"),
                    ft_tcp("Samba", 96.0, "table VI"),
                    figure(&MULTI_CORE, "ttcp", [97.0, 97.0], "section V.A"),
                ],
            },
            Group {
                name: "1000:1000",
                ours: &[("out-1000-1000", "")],
                theirs: &[ft_tcp("ttcp", 100.0, "section 8.2"), ft_tcp("Samba", 71.0, "table VI")],
            },
        ],
    },
    Comparison {
        title: "Time of one request, protected ÷ unprotected",
        unit: "×",
        log: false,
        ours: Ours::Ratio,
        note: "FT-TCP: a Samba directory listing of 2.18 ms. CoRAL: computed from its fitted \
               constants, the time to make the reply included. The shorter a request is \
               unprotected, the more an added microsecond shows.",
        groups: &[
            Group {
                name: "small",
                ours: &[("small-p50", "1 KiB, 1 Gbit/s"), ("small-p50-100", "1 KiB, 100 Mbit/s")],
                theirs: &[
                    figure(&FT_TCP, "cold backup", [2.67, 2.67], "table VII"),
                    figure(&FT_TCP, "hot backup", [2.83, 2.83], "table VII"),
                    figure(&CORAL, "1 KiB", [1.15, 1.15], "section 6.1"),
                ],
            },
            Group {
                name: "50 KiB",
                ours: &[("reply-50k-p50", "100 Mbit/s")],
                theirs: &[figure(&CORAL, "", [1.23, 1.23], "section 6.1")],
            },
        ],
    },
    Comparison {
        title: "Time added to a request",
        unit: "µs",
        log: false,
        ours: Ours::Added,
        note: CORAL_LINES,
        groups: &LATENCY_ADDED,
    },
    Comparison {
        title: "Time added to a request, share of the unprotected one",
        unit: "%",
        log: false,
        ours: Ours::AddedPercent,
        note: CORAL_LINES,
        groups: &LATENCY_ADDED_PERCENT,
    },
    Comparison {
        title: "Processor time of all nodes added to a request",
        unit: "µs",
        log: false,
        ours: Ours::Added,
        note: CORAL_CYCLES,
        groups: &CPU_ADDED,
    },
    Comparison {
        title: "Processor time of all nodes added to a request, share of the unprotected one",
        unit: "%",
        log: false,
        ours: Ours::AddedPercent,
        note: CORAL_CYCLES,
        groups: &CPU_ADDED_PERCENT,
    },
    Comparison {
        title: "Throughput of many small requests, share of the unprotected one",
        unit: "%",
        log: false,
        ours: Ours::Percent,
        note: "CoRAL's share is that of what two plain servers serve.",
        groups: &[Group {
            name: "requests",
            ours: &[
                ("small-50", "1 Gbit/s"),
                ("small-50-100", "100 Mbit/s"),
                ("small-50-unshaped", "unshaped"),
            ],
            theirs: &[
                figure(&CORAL, "dynamic, one primary", [44.0, 46.0], "section 6.3"),
                figure(&PLOVER, "SSDB", [71.0, 83.0], ""),
                figure(&VMWARE, "SSDB", [22.0, 26.0], ""),
            ],
        }],
    },
    Comparison {
        title: "Two nodes in dual role, share of what two plain servers answer",
        unit: "%",
        log: false,
        ours: Ours::Capacity,
        note: "Ours follows from the processor time of both nodes per request, since all hosts of \
               the lab share its processors. Replies that are made by programs take most of the \
               time of a request; with files CoRAL was not measured so.",
        groups: &[
            Group {
                name: "made by a program",
                ours: &[
                    ("coral-made-1k-dual-role-cpu-nodes", "1 KiB"),
                    ("coral-made-50k-dual-role-cpu-nodes", "50 KiB"),
                ],
                theirs: &[figure(&CORAL, "dynamic, dual role", [70.0, 72.0], "section 6.3")],
            },
            Group {
                name: "from files",
                ours: &[
                    ("coral-1k-dual-role-cpu-nodes", "1 KiB"),
                    ("coral-50k-dual-role-cpu-nodes", "50 KiB"),
                ],
                theirs: &[],
            },
        ],
    },
    Comparison {
        title: "Processor time per request, protected ÷ unprotected",
        unit: "×",
        log: false,
        ours: Ours::Ratio,
        note: "The ring's hosts are primaries and backups at once; its figure is utilisation. \
               CoRAL's replies are made by programs, which take most of the time.",
        groups: &[
            Group {
                name: "primary",
                ours: &[("cpu", "1 Gbit/s"), ("cpu-unshaped", "unshaped")],
                theirs: &[],
            },
            Group {
                name: "both nodes",
                ours: &[("cpu-nodes", "1 Gbit/s"), ("cpu-nodes-unshaped", "unshaped")],
                theirs: &[
                    figure(&RING, "", [1.06, 1.06], "section IV.B"),
                    figure(&CORAL, "dynamic", [1.32, 1.35], "section 6.2"),
                ],
            },
        ],
    },
    Comparison {
        title: "Interruption by a host's death, beyond its detection",
        unit: "ms",
        log: true,
        ours: Ours::Value,
        note: "CoRAL: until it serves alone, without the time to make replies again. Ring: from \
               detection to 98 recovered connections. FT-TCP without snooping waits for the \
               client's retransmission. Multi-core checkpoints: packet to packet, and RRC: \
               recovery, both with detection.",
        groups: &[
            Group {
                name: "one client",
                ours: &[("gap-p50", "p50"), ("gap-p99", "p99")],
                theirs: &[
                    figure(&CORAL, "", [1.5, 1.5], "table 3"),
                    figure(&FT_TCP, "no snooping", [200.0, 200.0], "section 9.1"),
                    figure(&MULTI_CORE, "at most", [100.0, 100.0], "section V"),
                    figure(&RRC, "at most", [1000.0, 1000.0], ""),
                ],
            },
            Group {
                name: "many",
                ours: &[
                    ("takeover-100", "100 flows"),
                    ("takeover-1000", "1,000 flows"),
                    ("takeover-10000", "10,000 flows"),
                ],
                theirs: &[figure(&RING, "98 flows", [900.0, 900.0], "section IV.C")],
            },
        ],
    },
    Comparison {
        title: "Memory of the backup for an idle flow",
        unit: "bytes",
        log: false,
        ours: Ours::Value,
        note: "Ours contains the request that the flow has behind it, about 60 bytes.",
        groups: &[Group {
            name: "flow",
            ours: &[("memory", "")],
            theirs: &[figure(&RING, "", [194.0, 194.0], "section IV.B")],
        }],
    },
    Comparison {
        title: "Processor time of a server per request, under it ÷ by itself",
        unit: "×",
        log: false,
        ours: Ours::Ratio,
        note: "All of them measured here. strace and rr stop the server and another process looks; \
               their own processor time is in the figure.",
        groups: &[
            Group {
                name: "redis-server",
                ours: &[
                    ("redis-passthrough", "runtime, pass-through"),
                    ("redis-record", "runtime, recorded"),
                    ("redis-strace", "strace"),
                    ("redis-rr", "rr"),
                ],
                theirs: &[],
            },
            Group {
                name: "nginx",
                ours: &[
                    ("nginx-passthrough", "runtime, pass-through"),
                    ("nginx-record", "runtime, recorded"),
                    ("nginx-strace", "strace"),
                    ("nginx-rr", "rr"),
                ],
                theirs: &[],
            },
        ],
    },
];

const CORAL_LINES: &str = "CoRAL: computed from its fitted constants, for Pentium II hosts at 350 \
    MHz with 100 Mbit/s and for Pentium 4 hosts at 2.66 GHz with 1 Gbit/s between them, the time \
    to make the reply included. Ours: unshaped, so without the reply's time on the cables; replies held \
    whole.";
const CORAL_CYCLES: &str = "CoRAL: computed from its fitted constants, for Pentium II hosts at 350 \
    MHz; a dynamic reply costs 120 cycles a byte to make, which both sides pay, a static one \
    nothing. Ours: replies held whole, 50 clients, unshaped.";

/// CoRAL's fitted lines of one setting: what a request costs with a reply of n bytes is
/// (per byte + made) · n + fixed.
#[derive(Debug)]
pub struct Fit {
    /// Cost of making a byte of a reply.
    made: f64,
    /// Per byte and fixed.
    standard: [f64; 2],
    duplex: [f64; 2],
    simplex: Option<[f64; 2]>,
    /// They measured its throughput only.
    dual_role: Option<[f64; 2]>,
}

/// Latency, µs: Pentium II, 100 Mbit/s (section 6.1).
pub static CORAL_P2: Fit = LATENCY_P2;
/// Latency, µs: Pentium 4, 1 Gbit/s (section 6.6).
pub static CORAL_P4: Fit = LATENCY_P4;
/// Processor time of all nodes, µs: Pentium II, replies made by programs (section 6.2).
pub static CORAL_DYNAMIC: Fit = CPU_DYNAMIC;
/// The same, replies from files (section 6.2).
pub static CORAL_STATIC: Fit = CPU_STATIC;

const LATENCY_P2: Fit = Fit {
    made: 0.34,
    standard: [0.10, 5590.0],
    duplex: [0.21, 6400.0],
    simplex: Some([0.14, 5860.0]),
    dual_role: None,
};
const LATENCY_P4: Fit = Fit {
    made: 0.0518,
    standard: [0.0856, 1670.0],
    duplex: [0.102, 2090.0],
    simplex: None,
    dual_role: None,
};
const CPU_DYNAMIC: Fit = Fit {
    made: 120.0 / P2_MHZ,
    standard: [10.0 / P2_MHZ, 1.89e6 / P2_MHZ],
    duplex: [56.0 / P2_MHZ, 2.55e6 / P2_MHZ],
    simplex: Some([12.0 / P2_MHZ, 2.0e6 / P2_MHZ]),
    dual_role: None,
};
const CPU_STATIC: Fit = Fit {
    made: 0.0,
    standard: [10.0 / P2_MHZ, 0.385e6 / P2_MHZ],
    duplex: [56.0 / P2_MHZ, 0.949e6 / P2_MHZ],
    simplex: Some([13.0 / P2_MHZ, 0.423e6 / P2_MHZ]),
    dual_role: None,
};
/// Cycles per µs.
const P2_MHZ: f64 = 350.0;

impl Fit {
    /// What a mode adds to a request, and the same in percent; nothing if that was not measured.
    pub const fn added(&self, mode: Mode, reply_kib: f64) -> Option<[f64; 2]> {
        let line = match mode {
            Mode::Duplex => Some(self.duplex),
            Mode::Simplex => self.simplex,
            Mode::DualRole => self.dual_role,
        };
        let Some([per_byte, fixed]) = line else { return None };
        let (bytes, standard) = (reply_kib * 1024.0, self.standard);
        let unprotected = (standard[0] + self.made) * bytes + standard[1];
        let added = (per_byte - standard[0]) * bytes + fixed - standard[1];
        Some([added, 100.0 * added / unprotected])
    }
}

const fn fitted(
    fit: &Fit,
    mode: Mode,
    kib: f64,
    percent: bool,
    what: &'static str,
    place: &'static str,
) -> Figure {
    let added = fit.added(mode, kib).expect("the mode was measured");
    let value = added[if percent { 1 } else { 0 }];
    figure(&CORAL, what, [value, value], place)
}

const fn latency_figures(kib: f64, percent: bool) -> [Figure; 3] {
    [
        fitted(&LATENCY_P2, Mode::Duplex, kib, percent, "duplex, P2", "section 6.1"),
        fitted(&LATENCY_P4, Mode::Duplex, kib, percent, "duplex, P4", "section 6.6"),
        fitted(&LATENCY_P2, Mode::Simplex, kib, percent, "simplex, P2", "section 6.1"),
    ]
}

const fn cpu_figures(fit: &Fit, kib: f64, percent: bool) -> [Figure; 2] {
    let place = "section 6.2";
    [
        fitted(fit, Mode::Duplex, kib, percent, "duplex", place),
        fitted(fit, Mode::Simplex, kib, percent, "simplex", place),
    ]
}

const LATENCY_OURS: [&[(&str, &str)]; 2] = [
    &[
        ("coral-made-1k-p50", "duplex, by a program"),
        ("coral-made-1k-simplex-p50", "simplex, by a program"),
        ("coral-1k-p50", "duplex, files"),
        ("coral-1k-simplex-p50", "simplex, files"),
    ],
    &[
        ("coral-made-50k-p50", "duplex, by a program"),
        ("coral-made-50k-simplex-p50", "simplex, by a program"),
        ("coral-50k-p50", "duplex, files"),
        ("coral-50k-simplex-p50", "simplex, files"),
    ],
];
const CPU_MADE: [&[(&str, &str)]; 2] = [
    &[("coral-made-1k-cpu-nodes", "duplex"), ("coral-made-1k-simplex-cpu-nodes", "simplex")],
    &[("coral-made-50k-cpu-nodes", "duplex"), ("coral-made-50k-simplex-cpu-nodes", "simplex")],
];
const CPU_FILES: [&[(&str, &str)]; 2] = [
    &[("coral-1k-cpu-nodes", "duplex"), ("coral-1k-simplex-cpu-nodes", "simplex")],
    &[("coral-50k-cpu-nodes", "duplex"), ("coral-50k-simplex-cpu-nodes", "simplex")],
];

static LATENCY_ADDED: [Group; 2] = [
    Group { name: "1 KiB", ours: LATENCY_OURS[0], theirs: &const { latency_figures(1.0, false) } },
    Group {
        name: "50 KiB",
        ours: LATENCY_OURS[1],
        theirs: &const { latency_figures(50.0, false) },
    },
];
static LATENCY_ADDED_PERCENT: [Group; 2] = [
    Group { name: "1 KiB", ours: LATENCY_OURS[0], theirs: &const { latency_figures(1.0, true) } },
    Group { name: "50 KiB", ours: LATENCY_OURS[1], theirs: &const { latency_figures(50.0, true) } },
];
static CPU_ADDED: [Group; 4] = [
    Group {
        name: "1 KiB, by a program",
        ours: CPU_MADE[0],
        theirs: &const { cpu_figures(&CPU_DYNAMIC, 1.0, false) },
    },
    Group {
        name: "1 KiB, files",
        ours: CPU_FILES[0],
        theirs: &const { cpu_figures(&CPU_STATIC, 1.0, false) },
    },
    Group {
        name: "50 KiB, by a program",
        ours: CPU_MADE[1],
        theirs: &const { cpu_figures(&CPU_DYNAMIC, 50.0, false) },
    },
    Group {
        name: "50 KiB, files",
        ours: CPU_FILES[1],
        theirs: &const { cpu_figures(&CPU_STATIC, 50.0, false) },
    },
];
static CPU_ADDED_PERCENT: [Group; 4] = [
    Group {
        name: "1 KiB, by a program",
        ours: CPU_MADE[0],
        theirs: &const { cpu_figures(&CPU_DYNAMIC, 1.0, true) },
    },
    Group {
        name: "1 KiB, files",
        ours: CPU_FILES[0],
        theirs: &const { cpu_figures(&CPU_STATIC, 1.0, true) },
    },
    Group {
        name: "50 KiB, by a program",
        ours: CPU_MADE[1],
        theirs: &const { cpu_figures(&CPU_DYNAMIC, 50.0, true) },
    },
    Group {
        name: "50 KiB, files",
        ours: CPU_FILES[1],
        theirs: &const { cpu_figures(&CPU_STATIC, 50.0, true) },
    },
];

/// CoRAL's time of a request, protected ÷ unprotected.
pub fn coral_ratio(reply_kib: f64) -> f64 {
    let added = LATENCY_P2.added(Mode::Duplex, reply_kib);
    1.0 + added.map_or(0.0, |[_, percent]| percent / 100.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::{Depth, Plan};

    #[test]
    fn rows_that_stand_beside_papers_are_measured() {
        let plan = Plan::of(Depth::Full);
        let rows: BTreeSet<_> =
            plan.heads().map(|head| &head.id[head.subject.prefix().len()..]).collect();
        for group in COMPARISONS.iter().flat_map(|c| c.groups) {
            for (row, _) in group.ours {
                assert!(rows.contains(*row), "{row}");
            }
            assert!(group.theirs.iter().all(|f| f.range[0] <= f.range[1]), "{group:?}");
        }
    }

    #[test]
    fn corals_constants_give_its_figures() {
        assert!((coral_ratio(1.0) - 1.15).abs() < 0.01);
        assert!((coral_ratio(50.0) - 1.23).abs() < 0.01);
        // "6.6 ms for 50KB replies"; "32%-35% for the entire range"; "about 310% for 50KB replies".
        let added = |fit: &Fit, kib| fit.added(Mode::Duplex, kib).unwrap();
        assert!((added(&CORAL_P2, 50.0)[0] - 6_600.0).abs() < 200.0);
        for kib in [1.0, 5.0, 20.0, 50.0] {
            let percent = added(&CORAL_DYNAMIC, kib)[1];
            assert!((31.5..36.0).contains(&percent), "{kib} KiB: {percent} %");
        }
        let percent = added(&CORAL_STATIC, 50.0)[1];
        assert!((300.0..330.0).contains(&percent), "{percent} %");
    }
}
