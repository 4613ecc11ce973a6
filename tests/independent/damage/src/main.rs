//! Damage to every file of a Collie store, judged by a model of its commits. `README.md` says what is looked at.

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
