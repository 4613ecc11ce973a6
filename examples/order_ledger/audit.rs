//! Does it all add up?

use std::collections::{BTreeMap, BTreeSet};

use collie_db::{Family, Snapshot};
use serde::de::DeserializeOwned;

use crate::shop::{Entry, LAST_ENTRY, Sale, Shop, ShopError, TILL, decode, owed_key};

/// What the ledger says, read from its first entry to its last.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) entries: u64,
    pub(crate) deposited: i64,
    pub(crate) delivered: i64,
    pub(crate) sold: i64,
    pub(crate) accounts: BTreeMap<String, i64>,
    pub(crate) stock: BTreeMap<String, i64>,
    pub(crate) orders: BTreeMap<String, Sale>,
    pub(crate) unpaid: BTreeMap<String, i64>,
    /// Everything that must not be.
    pub(crate) wrong: Vec<String>,
}

impl Books {
    pub(crate) fn till(&self) -> i64 {
        self.accounts.get(TILL).copied().unwrap_or(0)
    }

    /// What customers have and owe, both together.
    pub(crate) fn customers(&self) -> i64 {
        self.accounts.values().sum::<i64>() - self.till()
    }

    pub(crate) fn on_hand(&self) -> i64 {
        self.stock.values().sum()
    }

    fn wrong(&mut self, what: String) {
        self.wrong.push(what);
    }

    /// One entry later. Entries have the order of the commits, so that each must be right where it
    /// stands.
    fn enter(&mut self, number: u64, entry: Entry) {
        match entry {
            Entry::Deposit { customer, cents } => {
                self.deposited += cents;
                *self.accounts.entry(customer).or_default() += cents;
            }
            Entry::Delivery { item, pieces } => {
                self.delivered += pieces;
                *self.stock.entry(item).or_default() += pieces;
            }
            Entry::Sale { order, sale } => self.sell(number, order, sale),
            Entry::Payment { order } => {
                let owed = self.orders.get(&order).map(|sale| sale.customer.clone());
                let owed = owed.and_then(|customer| {
                    let cents = self.unpaid.remove(&owed_key(&customer, &order))?;
                    Some((customer, cents))
                });
                let Some((customer, cents)) = owed else {
                    return self.wrong(format!(
                        "entry {number} pays the order {order}, which owes nothing"
                    ));
                };
                *self.accounts.entry(customer).or_default() -= cents;
                *self.accounts.entry(TILL.into()).or_default() += cents;
            }
        }
    }

    fn sell(&mut self, number: u64, order: String, sale: Sale) {
        for (item, pieces) in &sale.lines {
            self.sold += pieces;
            let left = self.stock.entry(item.clone()).or_default();
            *left -= pieces;
            if *left < 0 {
                let left = *left;
                self.wrong(format!("entry {number}: {left} pieces of {item} are left"));
            }
        }
        let customer = sale.customer.clone();
        self.unpaid.insert(owed_key(&customer, &order), sale.cents);
        let owed = format!("{customer}/");
        let owed: i64 = self
            .unpaid
            .iter()
            .filter(|(key, _)| key.starts_with(&owed))
            .map(|(_, cents)| cents)
            .sum();
        let balance = self.accounts.get(&customer).copied().unwrap_or(0);
        if owed > balance {
            self.wrong(format!(
                "entry {number}: {customer} owes {owed} cents and has {balance}"
            ));
        }
        if self.orders.insert(order.clone(), sale).is_some() {
            self.wrong(format!("entry {number} sells the order {order} once more"));
        }
    }
}

/// Reads the ledger from the beginning, and compares what must come of it with what is there.
///
/// All of it is of one moment: a snapshot is a prefix of the commit order in every family, so this
/// would find the same beside orders that are being placed.
pub(crate) fn audit(shop: &Shop) -> Result<Books, ShopError> {
    let snapshot = shop.db.snapshot();
    let mut books = Books::default();
    for row in snapshot.iter(&shop.ledger)? {
        let (key, entry) = row?;
        books.entries += 1;
        if *key != books.entries.to_be_bytes() {
            books.wrong(format!(
                "the ledger's entry {} has the key {key:?}",
                books.entries
            ));
        }
        books.enter(books.entries, decode(&entry)?);
    }
    let last = snapshot.get(&shop.db.default_family(), LAST_ENTRY)?;
    let last: u64 = last.map_or(Ok(0), |row| decode(&row))?;
    if last != books.entries {
        books.wrong(format!(
            "the ledger has {} entries, the last number given is {last}",
            books.entries
        ));
    }
    let accounts = differences(&snapshot, &shop.accounts, &books.accounts)?;
    let stock = differences(&snapshot, &shop.stock, &books.stock)?;
    let orders = differences(&snapshot, &shop.orders, &books.orders)?;
    let unpaid = differences(&snapshot, &shop.unpaid, &books.unpaid)?;
    books
        .wrong
        .extend([accounts, stock, orders, unpaid].into_iter().flatten());
    Ok(books)
}

/// Where a family is not what the ledger makes of it.
fn differences<T>(
    snapshot: &Snapshot,
    family: &Family,
    expected: &BTreeMap<String, T>,
) -> Result<Vec<String>, ShopError>
where
    T: DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let mut found = BTreeMap::new();
    for row in snapshot.iter(family)? {
        let (key, value) = row?;
        found.insert(String::from_utf8_lossy(&key).into_owned(), decode::<T>(&value)?);
    }
    let keys: BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    let wrong = keys
        .into_iter()
        .filter(|key| found.get(*key) != expected.get(*key));
    let name = family.name();
    let describe = |key: &String| {
        format!(
            "{name}, {key}: the ledger makes it {:?}, the row is {:?}",
            expected.get(key),
            found.get(key)
        )
    };
    Ok(wrong.map(describe).collect())
}
