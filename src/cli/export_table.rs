//! Nonzeros as the rows of a table.

use crate::coo::tns::decimal;
use crate::encoding::TILE_NNZ;
use crate::error::Result;
use crate::format::DecodedTile;
use crate::store::Store;
use crate::table::csv::append_field;

/// The fields of a mode: the label of each index, ready to be written. A mode without labels has none, and its indices are written from 1.
#[derive(Debug, Default)]
struct ModeFields {
    text: Vec<u8>,
    /// The end of each label.
    ends: Vec<u64>,
}

impl ModeFields {
    fn field(&self, index: u32) -> &[u8] {
        let at = index as usize;
        let place = |end: u64| usize::try_from(end).unwrap_or(usize::MAX);
        let start = if at == 0 { 0 } else { place(self.ends[at - 1]) };
        &self.text[start..place(self.ends[at])]
    }
}

/// Writes nonzeros as rows of labels and a value.
#[derive(Debug)]
pub struct TableRows {
    /// The character between fields of text; `None` if labels are needed unquoted.
    delimiter: Option<u8>,
    names: Vec<String>,
    modes: Vec<ModeFields>,
    bytes: u64,
}

impl TableRows {
    /// The rows of `store`. Labels are not read yet.
    pub fn new(store: &Store, delimiter: Option<u8>) -> Self {
        let info = store.modes_info();
        let name =
            |mode: usize| store.mode_name(mode).map_or_else(|| format!("mode-{}", mode + 1), str::to_owned);
        let value = info.map(|info| info.value_name.clone()).filter(|name| !name.is_empty());
        let order = store.dims().len();
        let names = (0..order).map(name).chain([value.unwrap_or_else(|| "value".into())]).collect();
        // Each label may be quoted, and strings grow by doubling.
        let files = info.into_iter().flat_map(|info| &info.modes).zip(store.dims());
        let bytes =
            files.filter_map(|(mode, dim)| Some(2 * (mode.file?.text_bytes + 10 * u64::from(*dim)))).sum();
        Self { delimiter, names, modes: Vec::new(), bytes }
    }

    /// Bytes that the labels take.
    pub fn host_bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads the labels.
    pub fn load(mut self, store: &Store) -> Result<Self> {
        for mode in 0..store.dims().len() {
            let mut fields = ModeFields::default();
            if let Some(labels) = &mut store.labels(mode)? {
                labels.for_each(|_, label| {
                    match self.delimiter {
                        Some(delimiter) => append_field(label, delimiter, &mut fields.text),
                        None => fields.text.extend_from_slice(label.as_bytes()),
                    }
                    fields.ends.push(fields.text.len() as u64);
                    Ok(true)
                })?;
            }
            self.modes.push(fields);
        }
        Ok(self)
    }

    /// The names of the modes, and of the values.
    #[cfg(feature = "arrow")]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The label of an index; `None` if the mode has none.
    #[cfg(feature = "arrow")]
    pub fn label(&self, mode: usize, index: u32) -> Option<&str> {
        let fields = self.modes.get(mode).filter(|fields| !fields.ends.is_empty())?;
        std::str::from_utf8(fields.field(index)).ok()
    }

    /// The first row: names.
    pub fn header(&self) -> String {
        let (mut out, delimiter) = (Vec::new(), self.delimiter.unwrap_or(b','));
        for (at, name) in self.names.iter().enumerate() {
            if at > 0 {
                out.push(delimiter);
            }
            append_field(name, delimiter, &mut out);
        }
        out.push(b'\n');
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Appends the rows of a tile.
    pub fn append_tile(&self, tile: &DecodedTile<'_>, out: &mut Vec<u8>) {
        let (mut digits, delimiter) = (itoa::Buffer::new(), self.delimiter.unwrap_or(b','));
        for (i, &value) in tile.values.iter().enumerate() {
            for (m, fields) in self.modes.iter().enumerate() {
                let index = tile.indices[m * TILE_NNZ + i];
                if fields.ends.is_empty() {
                    out.extend_from_slice(digits.format(u64::from(index) + 1).as_bytes());
                } else {
                    out.extend_from_slice(fields.field(index));
                }
                out.push(delimiter);
            }
            decimal(value, out);
            out.push(b'\n');
        }
    }
}
