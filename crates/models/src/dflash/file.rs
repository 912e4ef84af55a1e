//! A draft's file and its configuration, found and opened.

use std::path::{Path, PathBuf};

use gguf::GgufFile;

use crate::dflash::gguf_keys;
use crate::dflash::hf_config::HfConfig;
use crate::dflash::names::DraftDialect;
use crate::dflash::safetensors_file::SafetensorsFile;
use crate::dflash::said::Statement;
use crate::error::ModelError;
use crate::tensor_file::TensorFile;

/// An open draft model.
#[derive(Debug)]
pub struct DraftFile {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Gguf {
        file: Box<GgufFile>,
        dialect: DraftDialect,
        /// A `config.json` beside it that is about a draft.
        beside: Option<HfConfig>,
    },
    Safetensors {
        file: SafetensorsFile,
        config: HfConfig,
    },
}

/// What lies beside weights in z-lab's releases.
const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";

impl DraftFile {
    /// Opens a GGUF file, a safetensors file with `config.json` beside it, or a folder with both.
    ///
    /// # Errors
    /// No such file, or one that is neither.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        if path.is_dir() {
            return Self::open_folder(path);
        }
        let config = path.with_file_name(CONFIG);
        if path.extension().is_some_and(|e| e == "safetensors") {
            return Self::open_safetensors(path, &config);
        }
        let mut draft = Self::from_gguf(GgufFile::open(path)?)?;
        if let Source::Gguf { beside, .. } = &mut draft.source
            && config.is_file()
        {
            *beside = Some(HfConfig::open(&config)?).filter(HfConfig::is_of_a_draft);
        }
        Ok(draft)
    }

    /// A GGUF file that is open already, with nothing beside it.
    ///
    /// # Errors
    /// It holds no draft model.
    pub fn from_gguf(file: GgufFile) -> Result<Self, ModelError> {
        let dialect = gguf_keys::dialect(&file)?;
        let source = Source::Gguf {
            file: Box::new(file),
            dialect,
            beside: None,
        };
        Ok(Self { source })
    }

    fn open_safetensors(path: &Path, config: &Path) -> Result<Self, ModelError> {
        let config = HfConfig::open(config)?;
        let file = SafetensorsFile::open(path)?;
        let source = Source::Safetensors { file, config };
        Ok(Self { source })
    }

    fn open_folder(path: &Path) -> Result<Self, ModelError> {
        let weights: PathBuf = path.join(WEIGHTS);
        if !weights.is_file() {
            return Err(ModelError::NoDraft {
                path: path.to_owned(),
                what: "the folder holds no model.safetensors (drafts in several parts are not read)",
            });
        }
        Self::open_safetensors(&weights, &path.join(CONFIG))
    }

    /// Names of its tensors.
    #[must_use]
    pub fn dialect(&self) -> DraftDialect {
        match &self.source {
            Source::Gguf { dialect, .. } => *dialect,
            Source::Safetensors { .. } => DraftDialect::HuggingFace,
        }
    }

    /// Path of the weights.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.tensors().path()
    }

    pub(crate) fn tensors(&self) -> &dyn TensorFile {
        match &self.source {
            Source::Gguf { file, .. } => file.as_ref(),
            Source::Safetensors { file, .. } => file,
        }
    }

    /// What the files say. A `config.json` beside a GGUF file knows better where both speak: a common converter writes
    /// defaults over a base of rotation and a mask token that the original nests, and no windows at all.
    pub(crate) fn read(&self) -> Result<Statement, ModelError> {
        let (file, dialect, beside) = match &self.source {
            Source::Safetensors { config, .. } => return config.read(),
            Source::Gguf {
                file,
                dialect,
                beside,
            } => (file, *dialect, beside),
        };
        let mut said = gguf_keys::read(file, dialect)?;
        let Some(beside) = beside else {
            return Ok(said);
        };
        let original = beside.read()?;
        for (original, said) in [
            (original.num_layers, &said.num_layers),
            (original.hidden_size, &said.hidden_size),
            (original.feed_forward_size, &said.feed_forward_size),
        ] {
            let of = format!("{} as {} says", said.value, said.path.display());
            original.checked(of, |&value| value == said.value)?;
        }
        if original.rope_theta.value.is_some() {
            said.rope_theta = original.rope_theta;
        }
        if original.mask_token_id.value.is_some() {
            said.mask_token_id = original.mask_token_id;
        }
        if original.attention.is_some() {
            said.attention = original.attention;
        }
        Ok(said)
    }
}
