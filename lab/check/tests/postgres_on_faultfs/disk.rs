//! A cluster on the file system that forgets.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use collie_check::postgres::{Cluster, missing, run};
use collie_sim::faultfs::{self, FaultFs, Names};
use collie_sim::{Effects, PowerCut};

/// A cluster and its disk.
pub(crate) struct OnDisk {
    pub(crate) cluster: Cluster,
    pub(crate) fs: FaultFs,
    _home: tempfile::TempDir,
}

impl OnDisk {
    /// An empty disk; `None`, and a reason on the output, where there cannot be one.
    pub(crate) fn new(seed: u64, names: Names) -> Option<Self> {
        let missing = faultfs::available().err().map(|e| e.to_string()).or_else(missing);
        if let Some(missing) = missing {
            assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
            println!("skipped: {missing}");
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        let at = home.path().join("disk");
        fs::create_dir(&at).unwrap();
        let cluster = Cluster::new(home.path(), &at.join("data")).unwrap();
        let fs = FaultFs::mount(&at, names, seed).unwrap();
        fs::set_permissions(fs.path(), Permissions::from_mode(0o755)).unwrap();
        let disk = Self {
            cluster,
            fs,
            _home: home,
        };
        disk.make_dir("data");
        Some(disk)
    }

    /// A directory on the disk that the server may use, with a durable name.
    pub(crate) fn make_dir(&self, name: &str) -> PathBuf {
        let path = self.fs.path().join(name);
        self.cluster.make_dir(&path).unwrap();
        File::open(self.fs.path()).unwrap().sync_all().unwrap();
        path
    }

    /// Puts a new cluster in the place of the one on the disk, if any: a durable copy of one that
    /// was made elsewhere.
    pub(crate) fn init_again(&mut self) {
        let script = "rm -rf data && cp -a \"$0\" data && find data -exec sync {} + && sync .";
        let mut copy = Command::new("sh");
        copy.args(["-ec", script]).arg(self.cluster.template().unwrap());
        run(copy.current_dir(self.fs.path())).unwrap();
    }

    /// Cuts the power under the server.
    pub(crate) fn cut(&mut self, how: PowerCut, seed: u64) -> Effects {
        self.fs.stop().unwrap();
        self.kill();
        self.fs.power_cycle(how, seed).unwrap()
    }

    fn kill(&mut self) {
        let fs = &self.fs;
        self.cluster
            .kill(|| {
                let _ = fs.fail_calls();
            })
            .unwrap();
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        let _ = self.fs.stop();
        self.kill();
    }
}
