//! Stores whose commits come from an external journal.

#[path = "../common/mod.rs"]
mod common;

mod adopt;
mod dying;
mod journal;
mod links;
mod model;
mod power;
mod rules;
