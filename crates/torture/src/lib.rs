//! The fault campaign: random work, random faults at random moments, and a judgement of each run.
//!
//! A *run* is a pure function of its seed ([`Plan::new`]): what clients do, what fails, and when.
//! The machine decides the rest, so a seed repeats the story, not every scheduling decision in it;
//! that is why a failed run keeps its captures. A campaign plays consecutive seeds: run *n* of
//! seed *s* is the run of seed *s* + *n*, and can be played alone.
//!
//! What happened in a run is collected without judging it ([`Evidence`]), by its clients, by the
//! daemons' own reports, and by the oracle, which reads every frame at every port. Then
//! [`rules`](mod@rules) judges: every complaint is a failure unless a row of one table says why
//! this run had to have it.
//!
//! | file | job |
//! |---|---|
//! | `plan.rs` | from a seed to a plan |
//! | `fault.rs`, `moment.rs` | what can fail, and when |
//! | `load.rs`, `shopping.rs` | the clients: programs, and a shop's |
//! | `stage.rs` | the pair, and what is done to it |
//! | `play.rs` | one run, from the plan to its evidence |
//! | `rules.rs` | the judgement |
//! | `campaign.rs`, `summary.rs`, `page.rs` | many runs, their figures, the page that shows them |

#![forbid(unsafe_code)]

pub mod campaign;
pub mod evidence;
pub mod fault;
mod leak;
mod load;
pub mod moment;
pub mod page;
pub mod plan;
mod play;
pub mod rules;
mod shopping;
mod stage;
pub mod summary;

pub use campaign::{Campaign, DETECTION_MS, Options};
pub use evidence::Evidence;
pub use fault::Kind;
pub use plan::{Plan, Scheme, Wanted};
pub use rules::Outcome;
pub use summary::Summary;
