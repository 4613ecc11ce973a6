//! Commands that move or copy keys: `RENAME`, `RENAMENX`, `COPY`, `MOVE` and `SWAPDB`.

use collie_protocol::Request;

use super::keyspace::rearrange;
use super::numbers::{database, integer, is};
use super::row::{Command, Keys};
use crate::cost::Aside;
use crate::data::keyspace::DATABASES;
use crate::exec::{Exec, Flow, Found, Outcome, Transaction};
use crate::failure::{Failure, text};

/// The rows of its commands.
pub(super) const ROWS: &[Command] = &[
    Command::new("copy", -3, copy)
        .about("6.2.0", "generic", "Copies a key.")
        .flags(&["write", "denyoom"])
        .categories(&["@keyspace", "@write", "@slow"])
        .keys(&[Keys::at(1, &["RO", "access"]), Keys::at(2, &["OW", "update"])])
        .everywhere(),
    Command::new("move", 3, move_key)
        .about("1.0.0", "generic", "Moves a key to another database.")
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .keys(&[Keys::at(1, &["RW", "access", "update"])])
        .everywhere(),
    Command::new("rename", 3, rename)
        .about("1.0.0", "generic", "Renames a key.")
        .flags(&["write"])
        .categories(&["@keyspace", "@write", "@slow"])
        .keys(&[
            Keys::at(1, &["RW", "access", "delete"]),
            Keys::at(2, &["OW", "update"]),
        ]),
    Command::new("renamenx", 3, renamenx)
        .about(
            "1.0.0",
            "generic",
            "Renames a key if the new name does not exist.",
        )
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast"])
        .keys(&[
            Keys::at(1, &["RW", "access", "delete"]),
            Keys::at(2, &["OW", "insert"]),
        ]),
    Command::new("swapdb", 3, swapdb)
        .about("4.0.0", "server", "Swaps two databases.")
        .flags(&["write", "fast"])
        .categories(&["@keyspace", "@write", "@fast", "@dangerous"])
        .everywhere()
        .lasting(),
];

fn rename(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    rename_unless(exec, request, false)?;
    exec.reply.ok();
    Ok(Flow::Next)
}

fn renamenx(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let renamed = rename_unless(exec, request, true)?;
    exec.reply.integer(i64::from(renamed));
    Ok(Flow::Next)
}

fn rename_unless(exec: &mut Exec<'_>, request: Request<'_>, keeps_target: bool) -> Result<bool, Failure> {
    let (from, to) = (request.at(1), request.at(2));
    let db = exec.session.db;
    exec.step([(db, from), (db, to)].into_iter(), |exec| {
        let prior = exec.prior(from)?;
        if prior.live().is_none() {
            return Err(text::NO_SUCH_KEY.into());
        }
        if from == to {
            return Ok(!keeps_target);
        }
        let target = exec.prior(to)?;
        if keeps_target && target.live().is_some() {
            return Ok(false);
        }
        exec.rename(from, &prior, to, &target)?;
        Ok(true)
    })
}

/// The database that `COPY` names, and whether it replaces the destination.
pub(super) fn copy_options(request: Request<'_>) -> Result<(Option<u8>, bool), Failure> {
    let (mut target_db, mut replace) = (None, false);
    let mut i = 3;
    while let Some(word) = request.get(i) {
        match request.get(i + 1) {
            _ if is(word, "REPLACE") => replace = true,
            Some(index) if is(word, "DB") => {
                target_db = Some(database(index)?);
                i += 1;
            }
            _ => return Err(text::SYNTAX.into()),
        }
        i += 1;
    }
    Ok((target_db, replace))
}

fn copy(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    let own = exec.session.db;
    let (target_db, replace) = copy_options(request)?;
    let target_db = target_db.unwrap_or(own);
    if target_db != own && exec.shared.partitions.is_some() {
        return Err("ERR Copying to another database is not allowed in cluster mode".into());
    }
    let (from, to) = (request.at(1), request.at(2));
    if target_db == own && from == to {
        return Err(text::SAME_OBJECT.into());
    }
    if !has_keyspace(exec, target_db)? {
        return Ok(Flow::Aside(Aside::Waits));
    }
    let copied = exec.step([(own, from), (target_db, to)].into_iter(), |exec| {
        let prior = exec.prior(from)?;
        let Some(found) = prior.live() else {
            return Ok(false);
        };
        put_into(exec, target_db, to, found, replace)
    })?;
    exec.reply.integer(i64::from(copied));
    Ok(Flow::Next)
}

fn move_key(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    if exec.shared.partitions.is_some() {
        return Err("ERR MOVE is not allowed in cluster mode".into());
    }
    let (key, own) = (request.at(1), exec.session.db);
    let target_db = database(request.at(2))?;
    if target_db == own {
        return Err(text::SAME_OBJECT.into());
    }
    if !has_keyspace(exec, target_db)? {
        return Ok(Flow::Aside(Aside::Waits));
    }
    let moved = exec.step([(own, key), (target_db, key)].into_iter(), |exec| {
        let prior = exec.prior(key)?;
        let Some(found) = prior.live() else {
            return Ok(false);
        };
        let moved = put_into(exec, target_db, key, found, false)?;
        if moved {
            exec.remove(key, &prior)?;
        }
        Ok(moved)
    })?;
    exec.reply.integer(i64::from(moved));
    Ok(Flow::Next)
}

/// Stores a key in another database of the transaction, unless it exists there and `replace` is
/// false.
fn put_into(exec: &mut Exec<'_>, db: u8, key: &[u8], found: &Found, replace: bool) -> Result<bool, Failure> {
    // Read here: its pieces are those of this database.
    let payload = exec.payload(found)?;
    let own = std::mem::replace(&mut exec.session.db, db);
    let put = exec.prior(key).and_then(|target| {
        if target.live().is_some() && !replace {
            return Ok(false);
        }
        exec.store(key, &target, &payload, found.header.expiry_ms)?;
        Ok(true)
    });
    exec.session.db = own;
    put
}

/// Whether a database has a keyspace: it has one once it was selected. On a thread that may block it is
/// created.
fn has_keyspace(exec: &Exec<'_>, db: u8) -> Result<bool, Failure> {
    if exec.shared.store.keyspace(db).is_some() {
        return Ok(true);
    }
    if exec.transaction.is_some() {
        return Err("ERR internal error: the database was not prepared for a transaction".into());
    }
    if exec.may_block {
        exec.shared.store.create(db)?;
    }
    Ok(exec.may_block)
}

fn swapdb(exec: &mut Exec<'_>, request: Request<'_>) -> Outcome {
    if exec.shared.partitions.is_some() {
        return Err("ERR SWAPDB is not allowed in cluster mode".into());
    }
    let one = swapped(request.at(1), "ERR invalid first DB index")?;
    let other = swapped(request.at(2), "ERR invalid second DB index")?;
    let (Some(one), Some(other)) = (one, other) else {
        return Err(text::DB_OUT_OF_RANGE.into());
    };
    if let Some(Transaction::Store(transaction)) = &mut exec.transaction {
        transaction.swap(exec.shared, one, other)?;
    } else if one != other {
        if !exec.may_block {
            return Ok(Flow::Aside(Aside::Waits));
        }
        exec.shared.store.create(one)?;
        exec.shared.store.create(other)?;
        rearrange(exec, Vec::new, |transaction, shared| {
            transaction.swap(shared, one, other)
        })?;
    }
    exec.reply.ok();
    Ok(Flow::Next)
}

/// A database of `SWAPDB`; `None` if the number is not that of a database.
fn swapped(arg: &[u8], wrong: &'static str) -> Result<Option<u8>, Failure> {
    let index = integer(arg).ok().and_then(|index| i32::try_from(index).ok());
    let index = index.ok_or(Failure::from(wrong))?;
    Ok(u8::try_from(index).ok().filter(|index| *index < DATABASES))
}
