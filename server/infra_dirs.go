package server

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// providersDir is the directory for providers in the data directory.
const providersDir = "providers"

// maxRunDirLen is the maximum length of a directory with sockets below it; see
// plugin.Config.
const maxRunDirLen = 70

// workspaceProvidersDir is the directory for the providers of workspaces, in providersDir. Each workspace has one in it.
const workspaceProvidersDir = "w"

// workspaceFile is the file in the directory of a workspace that has the UID of its Workspace.
const workspaceFile = "workspace"

// providerDirs are the directories of one registry of providers.
type providerDirs struct {
	// dir has its packages and what survives a restart, and run the sockets of its processes.
	dir, run string
	// others is set if providers run as other users than the server, and reachable unless these cannot reach dir.
	others, reachable bool
	closer            io.Closer // may be nil
}

// openProviderDirs creates the directories for the root's providers. The caller closes them.
func openProviderDirs(dataDir string, users providerUserNames) (d providerDirs, err error) {
	d = providerDirs{dir: filepath.Join(dataDir, providersDir), others: users.others(), reachable: true}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return d, fmt.Errorf("create the directory for providers: %w", err)
	}
	if d.others {
		if err := grantTraversal(dataDir, d.dir); err != nil {
			if users.fixed != nil || !errors.Is(err, errNoTraversal) {
				return d, err
			}
			// The user is Atoll's choice, not the administrator's, so that no data directory
			// stops working. Providers then cannot read their own packages by path, but run.
			d.reachable = false
		}
	}
	d.run, d.closer, err = runDir(d.dir, d.reachable)
	return d, err
}

// ofWorkspace creates the directories for the providers of a workspace. They have the UID that it was created with, so they stay the same when it
// moves. uid is that of its Workspace now. The caller closes them.
func (d providerDirs) ofWorkspace(origin, uid string) (_ providerDirs, err error) {
	parent := filepath.Join(d.dir, workspaceProvidersDir)
	sum := sha256.Sum256([]byte(origin)) // paths of sockets are limited
	of := providerDirs{dir: filepath.Join(parent, hex.EncodeToString(sum[:8])), others: d.others, reachable: d.reachable}
	mode := os.FileMode(0o700)
	if d.others {
		mode = 0o711 // as the other directories above packages
	}
	if err := errors.Join(os.MkdirAll(of.dir, 0o700), os.Chmod(parent, mode), os.Chmod(of.dir, mode), os.WriteFile(filepath.Join(of.dir, workspaceFile), []byte(uid), 0o600)); err != nil {
		return of, fmt.Errorf("create the directory for the providers of a workspace: %w", err)
	}
	of.run, of.closer, err = runDir(of.dir, of.reachable)
	return of, err
}

// removeOfWorkspace removes the directory for the providers of a Workspace that is gone for good.
func (d providerDirs) removeOfWorkspace(uid string) error {
	parent := filepath.Join(d.dir, workspaceProvidersDir)
	entries, err := os.ReadDir(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		dir := filepath.Join(parent, entry.Name())
		if of, readErr := os.ReadFile(filepath.Join(dir, workspaceFile)); readErr == nil && string(of) == uid {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	if err != nil {
		return fmt.Errorf("remove the directory for the providers of a workspace: %w", err)
	}
	return nil
}

// Close removes the directory for sockets if it is a temporary one.
func (d providerDirs) Close() error {
	if d.closer == nil {
		return nil
	}
	return d.closer.Close()
}

// journalKey returns the file of the key that encrypts the answers in the journal of provider calls. It is
// with the other keys, which can be in memory while the providers are on a disk. Servers of earlier
// versions have it beside the journal.
func journalKey(dataDir string) string {
	before := filepath.Join(dataDir, providersDir, "calls.key")
	if _, err := os.Stat(before); err == nil {
		return before
	}
	return filepath.Join(dataDir, "pki", "provider-calls.key")
}

// errNoTraversal reports a data directory that other users cannot reach.
var errNoTraversal = errors.New("prepare to run providers as another user")

// runDir returns the directory for the sockets of providers' processes: below the data
// directory if its path is short enough and reachable for their users, otherwise a
// temporary one, with a closer.
func runDir(dir string, reachable bool) (string, io.Closer, error) {
	run := filepath.Join(dir, "run")
	if len(run) <= maxRunDirLen && reachable {
		return run, nil, nil
	}
	// The name is deterministic, so that the next server finds the directory again. It
	// removes files that a killed server left there, except those that its keepers
	// still need.
	sum := sha256.Sum256([]byte(dir))
	run = filepath.Join(os.TempDir(), "atoll-"+hex.EncodeToString(sum[:8]))
	if err := os.Mkdir(run, 0o700); err != nil && !isOwn(run) {
		if run, err = os.MkdirTemp("", "atoll-"); err != nil {
			return "", nil, fmt.Errorf("create a directory for the sockets of providers: %w", err)
		}
	}
	return run, tempRunDir(run), nil
}

// isOwn reports whether a path is a directory owned by this process's user, and not a
// symbolic link: other users can write to its parent.
func isOwn(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// tempRunDir is a directory that is removed on Close, unless a keeper still works in
// it.
type tempRunDir string

func (e tempRunDir) Close() error {
	if err := os.Remove(string(e)); err != nil && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// grantTraversal lets another user reach the providers' directory and nothing else: it
// may pass through the data directory, and all other entries there become private to
// their owner.
func grantTraversal(dataDir, providersDir string) error {
	for dir := filepath.Dir(dataDir); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("prepare to run providers as another user: %w", err)
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("%w: only the owner of %s can traverse it: run chmod o+x on it, choose another --data-dir, or omit --provider-user", errNoTraversal, dir)
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	entries, err := os.ReadDir(dataDir)
	if err != nil {
		return fmt.Errorf("prepare to run providers as another user: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(dataDir, entry.Name())
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) || err == nil && (path == providersDir || info.Mode()&fs.ModeSymlink != 0) {
			continue
		}
		if err == nil {
			err = os.Chmod(path, info.Mode().Perm()&^0o077)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("prepare to run providers as another user: %w", err)
		}
	}
	return errors.Join(os.Chmod(providersDir, 0o711), os.Chmod(dataDir, 0o711))
}
