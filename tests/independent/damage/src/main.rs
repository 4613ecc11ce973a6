//! Damage to every file of a Collie store, judged by a model of its commits. It uses public interfaces only
//! and shares no code with the tests.
//!
//! Options: `--seed N`, `--rounds N` or `--seconds N`, `--damages N` for each store, `--only I` of these,
//! `--class Ring` (or another class of `src/damage.rs`), `--verbose`, `--lies` (each first answer is changed:
//! the run must fail).
//!
//! **A round** makes a store in one to four lives that end with a close or SIGKILL: families that are idle,
//! dropped and made again, kept out of the log; values of 0 B to 3 MB, keys up to 65,535 B; a shared or
//! private ring, small segments and buffers. The parent keeps a model of its commits.
//!
//! **Damage** (`src/damage.rs`) is one or two of: a bit, zeros, garbage, a shorter or longer file, two files
//! exchanged, an older or another store's file, none, a second name, a directory instead. All files have
//! their turn: segments, archive, ring, manifest, tables, `current`, versions, `verified`, locks. The store
//! is verified, sometimes repaired, and opened in one of the three recovery modes, with 4 GiB of address
//! space at most.
//!
//! **Checked** (`src/rules.rs`): it is refused with an error that names a file of the store, also when a
//! table is read; or all ways to read agree, the commits are a prefix, none partial, as long as the mode and
//! `docs/book/src/durability.md` demand, and a loss is reported. Then writes, a close, a strict opening and a
//! merge must work. After a refusal, without the damage, all is there. No panic, no hang.

#![allow(clippy::disallowed_methods, reason = "it damages real files")]

mod child;
mod damage;
mod judge;
mod parent;
mod plan;
mod process;
mod rng;
mod rules;

use std::path::Path;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(|arg| &**arg).collect();
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let code = match words[..] {
        ["life", base, seed, which] => child::life(Path::new(base), number(seed), number(which) as usize),
        ["probe", base, seed, mode, repair] => {
            child::probe(Path::new(base), number(seed), mode, repair == "repair")
        }
        ["run", ref options @ ..] => parent::run(options),
        _ => parent::usage(),
    };
    std::process::exit(code);
}
