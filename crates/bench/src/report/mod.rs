//! Pages made from a record. No figure on them is typed by hand, apart from those of the papers.

pub mod html;
pub mod markdown;
mod papers;
mod plot;
mod words;

#[cfg(test)]
pub(crate) mod fixture;
