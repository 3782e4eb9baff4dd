//! What published systems reached, beside which of our rows it stands, and where it is written.
//!
//! Hardware, servers and decades differ. What can be compared is what each system costs against
//! the same server without it, on the machines it ran on; so nearly everything is a ratio.

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
pub static COMPARISONS: [Comparison; 7] = [
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
        title: "Throughput of many small requests, share of the unprotected one",
        unit: "%",
        log: false,
        ours: Ours::Percent,
        note: "CoRAL's shares are those of what two plain servers serve.",
        groups: &[Group {
            name: "requests",
            ours: &[
                ("small-50", "1 Gbit/s"),
                ("small-50-100", "100 Mbit/s"),
                ("small-50-unshaped", "unshaped"),
            ],
            theirs: &[
                figure(&CORAL, "dynamic, dual role", [70.0, 72.0], "section 6.3"),
                figure(&CORAL, "dynamic, one primary", [44.0, 46.0], "section 6.3"),
                figure(&PLOVER, "SSDB", [71.0, 83.0], ""),
                figure(&VMWARE, "SSDB", [22.0, 26.0], ""),
            ],
        }],
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
];

/// CoRAL's time of a request, protected ÷ unprotected, from its fitted constants (section 6.1):
/// ms to set up, µs for each byte sent and for each byte made.
pub fn coral_ratio(reply_kib: f64) -> f64 {
    const MADE: f64 = 0.34;
    let time_ms = |sent: f64, setup_ms: f64| (sent + MADE) * reply_kib * 1.024 + setup_ms;
    time_ms(0.21, 6.40) / time_ms(0.10, 5.59)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::{Depth, plan};
    use crate::scheme::Scheme;

    #[test]
    fn rows_that_stand_beside_papers_are_measured() {
        let rows: BTreeSet<_> = plan(Scheme::Track, Depth::Full)
            .into_iter()
            .flat_map(|e| e.heads)
            .map(|head| head.id)
            .collect();
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
    }
}
