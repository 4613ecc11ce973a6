//! What a transaction does to lists and guards.

use std::collections::BTreeMap;

use collie_db::{Error, Family};
use rand::Rng;

use super::{Known, Run};
use crate::events::{Element, ListId, Step, element};
use crate::forms::{Found, How, Reader, Tried, encode, places, row, row_key, wrong};
use crate::plan::{Form, List, Rule};
use crate::world::chance;

impl Run<'_> {
    fn element(&mut self, list: &List) -> Element {
        let element = element(self.id, self.appended);
        self.appended += 1;
        self.all_appended.push((list.id, element));
        element
    }

    pub(super) fn append(&mut self, family: &Family, list: &List) -> Tried<()> {
        if list.form == Form::Rows && self.rng.random_ratio(1, 3) {
            return self.append_unseen(family, list);
        }
        let how = self.random_how();
        let mut found = self.read(family, list, how)?;
        let element = self.element(list);
        let limit = self.world.limit();
        match &mut found {
            Found::Value(value) => {
                let elements = value.get_or_insert_default();
                elements.push(element);
                self.tx.put(family, &list.key, encode(list, elements, limit))?;
            }
            Found::Moving(both) => {
                let places = places(list);
                let at = usize::from(both[1].is_some());
                let mut elements = both[at].take().unwrap_or_default();
                elements.push(element);
                let bytes = encode(list, &elements, limit);
                let to = if self.rng.random_ratio(1, 3) { 1 - at } else { at };
                if to != at {
                    self.tx.delete(family, &places[at])?;
                }
                self.tx.put(family, &places[to], bytes)?;
                both[to] = Some(elements);
            }
            Found::Rows(rows) => {
                let position = rows.last().map_or(0, |(last, _)| last + 1);
                self.tx
                    .put(family, row_key(list, position), encode(list, &[element], limit))?;
                rows.push((position, vec![element]));
                if rows.len() > 2 && chance(self.rng, 6) {
                    self.pack(family, list, rows)?;
                }
            }
        }
        self.note_append(list, element, Known::All(found));
        Ok(())
    }

    /// Rows become one, the last: an append meanwhile comes after it.
    fn pack(&self, family: &Family, list: &List, rows: &mut Vec<(u32, Vec<Element>)>) -> Tried<()> {
        let Some((last, _)) = rows.last().cloned() else {
            return Ok(());
        };
        for (position, _) in &rows[..rows.len() - 1] {
            self.tx.delete(family, row_key(list, *position))?;
        }
        let all: Vec<Element> = rows.iter().flat_map(|(_, row)| row).copied().collect();
        self.tx.put(
            family,
            row_key(list, last),
            encode(list, &all, self.world.limit()),
        )?;
        *rows = vec![(last, all)];
        Ok(())
    }

    fn note_append(&mut self, list: &List, element: Element, known: Known) {
        self.steps.push(Step::Append(list.id, element));
        self.model.lists.insert(list.id, known);
        self.wrote = true;
    }

    /// Appends a row after having seen only the last one.
    fn append_unseen(&mut self, family: &Family, list: &List) -> Tried<()> {
        let limit = self.world.limit();
        let last = match Reader::Transaction(&self.tx)
            .prefix(family, &list.key)?
            .next_back()
            .transpose()?
        {
            Some((key, value)) => Some(row(list, &key, &value, limit)?),
            None => None,
        };
        let mut known = match self.model.lists.get(&list.id) {
            Some(known) => {
                let expected = match known {
                    Known::All(Found::Rows(rows)) => rows.last().map(|(position, _)| *position),
                    Known::All(_) => None,
                    Known::Tail(last, own) => own.last().map(|(position, _)| *position).or(*last),
                };
                if last.as_ref().map(|(position, _)| *position) != expected {
                    return wrong(format!(
                        "transaction {} finds {last:?} at the end of list {}, and had {known:?}",
                        self.id, list.id
                    ));
                }
                known.clone()
            }
            None => {
                let known = Known::Tail(last.as_ref().map(|(position, _)| *position), Vec::new());
                self.before.insert(list.id, known.clone());
                known
            }
        };
        let element = self.element(list);
        let position = last.map_or(0, |(position, _)| position + 1);
        self.tx
            .put(family, row_key(list, position), encode(list, &[element], limit))?;
        match &mut known {
            Known::All(Found::Rows(rows)) => rows.push((position, vec![element])),
            Known::All(_) => {}
            Known::Tail(_, own) => own.push((position, vec![element])),
        }
        self.note_append(list, element, known);
        Ok(())
    }

    /// Writes what is there already, in one of several ways.
    pub(super) fn touch(&mut self, family: &Family, list: &List) -> Tried<()> {
        let how = self.random_how();
        let mut found = self.read(family, list, how)?;
        let limit = self.world.limit();
        match &mut found {
            Found::Value(value @ None) => {
                if matches!(list.rule, Rule::Shared) && self.rng.random() {
                    self.tx.put(family, &list.key, b"")?;
                    *value = Some(Vec::new());
                } else {
                    self.tx.delete(family, &list.key)?;
                }
            }
            Found::Value(value) => {
                let bytes = encode(list, value.as_deref().unwrap_or_default(), limit);
                if self.rng.random_ratio(1, 3) {
                    self.tx.delete(family, &list.key)?;
                    if let Some(left) = self.tx.get(family, &list.key)? {
                        return wrong(format!(
                            "a key that the transaction removed has {} bytes",
                            left.len()
                        ));
                    }
                }
                if bytes.is_empty() && matches!(list.rule, Rule::Shared) && self.rng.random() {
                    self.tx.delete(family, &list.key)?;
                    *value = None;
                } else {
                    self.tx.put(family, &list.key, bytes)?;
                }
            }
            Found::Moving(both) => {
                let Some(at) = both.iter().position(Option::is_some) else {
                    return Ok(());
                };
                let elements = both[at].take().unwrap_or_default();
                self.tx.delete(family, &places(list)[at])?;
                let to = self.rng.random_range(0..2);
                self.tx
                    .put(family, &places(list)[to], encode(list, &elements, limit))?;
                both[to] = Some(elements);
            }
            Found::Rows(rows) => {
                let mut packed = rows.clone();
                if self.rng.random() {
                    self.pack(family, list, &mut packed)?;
                } else if let Some((position, row)) = packed.last() {
                    self.tx
                        .put(family, row_key(list, *position), encode(list, row, limit))?;
                }
                *rows = packed;
            }
        }
        self.wrote = true;
        self.model.lists.insert(list.id, Known::All(found));
        Ok(())
    }

    /// All lists of rows in a family at once, the empty ones too; or some from its start.
    pub(super) fn scan_family(&mut self, family: &Family, list: &List) -> Tried<()> {
        let limit = self.world.limit();
        let lists: Vec<List> = if crate::plan::is_passing(list.id) {
            crate::plan::passing_lists(family.id())
                .into_iter()
                .filter(|list| list.form == Form::Rows)
                .collect()
        } else {
            let here = |other: &&List| other.family == list.family && other.form == Form::Rows;
            self.world.plan.lists.iter().filter(here).cloned().collect()
        };
        let mut found: BTreeMap<ListId, Vec<(u32, Vec<Element>)>> = BTreeMap::new();
        let mut through = None;
        if self.rng.random_ratio(2, 3) {
            for (key, value) in Reader::Transaction(&self.tx).scan(self.rng, family, b"R")? {
                let Some(list) = lists.iter().find(|list| key.starts_with(&list.key)) else {
                    return wrong(format!(
                        "the family {:?} has a row that belongs to no list: {key:?}",
                        family.name()
                    ));
                };
                found
                    .entry(list.id)
                    .or_default()
                    .push(row(list, &key, &value, limit)?);
            }
        } else {
            // Only as far as the first row of another list: what was not shown does not count.
            for entry in Reader::Transaction(&self.tx).prefix(family, b"R")? {
                let (key, value) = entry?;
                let Some(list) = lists.iter().find(|list| key.starts_with(&list.key)) else {
                    return wrong(format!(
                        "the family {:?} has a row that belongs to no list: {key:?}",
                        family.name()
                    ));
                };
                if !found.is_empty() && !found.contains_key(&list.id) {
                    through = Some(list.key.clone());
                    break;
                }
                found
                    .entry(list.id)
                    .or_default()
                    .push(row(list, &key, &value, limit)?);
            }
        }
        for list in &lists {
            if through.as_ref().is_some_and(|through| list.key >= *through) {
                continue;
            }
            let rows = found.remove(&list.id).unwrap_or_default();
            self.see(list, Found::Rows(rows), How::Plain)?;
        }
        Ok(())
    }

    /// Writes the guard, or (`share`) only makes sure that no other transaction does.
    pub(super) fn take_guard(&mut self, number: usize, share: bool) -> Tried<()> {
        let world = self.world;
        let guard = &world.plan.guards[number];
        let family = &world.families[guard.family];
        let check = |found: Option<collie_db::Value>| {
            if world.changing_guards || found.as_deref() == guard.value.as_deref() {
                return Ok(());
            }
            wrong(format!("the guard {:?} is read as {found:?}", guard.key))
        };
        if share {
            check(self.tx.get_for_share(family, &guard.key)?)?;
        } else {
            if self.rng.random() {
                check(self.tx.get_for_update(family, &guard.key)?)?;
            }
            match &guard.value {
                _ if world.changing_guards => self.tx.put(family, &guard.key, self.id.to_le_bytes())?,
                Some(value) => {
                    if chance(self.rng, 4) {
                        self.tx.delete(family, &guard.key)?;
                    }
                    self.tx.put(family, &guard.key, value)?;
                }
                None => {
                    if chance(self.rng, 4) {
                        self.tx.put(family, &guard.key, b"guard")?;
                    }
                    self.tx.delete(family, &guard.key)?;
                }
            }
            self.wrote = true;
        }
        self.model.guard = Some((number, !share));
        Ok(())
    }

    pub(super) fn flush(&mut self, family: &Family) -> Tried<()> {
        let flushed = if chance(self.rng, 5) {
            family.compact()
        } else {
            family.flush()
        };
        match flushed {
            Err(Error::FamilyDropped { .. }) => Ok(()),
            flushed => Ok(flushed?),
        }
    }
}
