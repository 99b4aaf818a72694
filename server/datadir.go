package server

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
)

// prepareDataDir creates the directory with access for its owner only, and checks that
// it is writable before anything depends on it.
func prepareDataDir(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		var probe *os.File
		if probe, err = os.CreateTemp(dir, ".probe-*"); err == nil {
			err = errors.Join(probe.Close(), os.Remove(probe.Name()))
		}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("data directory %s is not writable: change its owner, or choose another with --data-dir", dir)
	default:
		return fmt.Errorf("data directory %s cannot be created or written: %w: choose another with --data-dir", dir, err)
	}
}

// restrictAccess takes away the access of other users of the machine to an existing data directory that they can read or write.
// Mode 0711 is left: providers that run as another user pass through it. Volumes of Pods have wider modes, but a Pod has no
// other users.
func restrictAccess(dir string, log *slog.Logger) {
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" || runtime.GOOS == "windows" {
		return
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm()&0o066 == 0 {
		return
	}
	const mode = fs.FileMode(0o700)
	was := info.Mode().Perm()
	if err := os.Chmod(dir, mode); err != nil {
		log.Warn("other users can read or replace the files of the data directory, and the server cannot change that: run chmod 700 on it as its owner",
			"dir", dir, "mode", fmt.Sprintf("%#o", was), "error", err)
		return
	}
	log.Info("other users have no access to the data directory any more", "dir", dir, "mode", fmt.Sprintf("%#o", mode), "before", fmt.Sprintf("%#o", was))
}

// writeFile replaces a file atomically: after a crash the file has the old content or
// the new, never a part. Only its owner may read it.
func writeFile(path string, content []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // fails after the rename
	// CreateTemp creates files with mode 0600.
	if _, err := temp.Write(content); err != nil {
		return errors.Join(err, temp.Close())
	}
	if err := temp.Sync(); err != nil {
		return errors.Join(err, temp.Close())
	}
	if err := temp.Close(); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}

func writeIfChanged(path string, content []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	return writeFile(path, content)
}
