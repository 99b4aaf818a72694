package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/infra/provider"
	"github.com/atoll-dev/atoll/infra/providers"
	"github.com/atoll-dev/atoll/infra/reference"
)

// infraUser is the user in the audit log for the infrastructure controllers.
const infraUser = "atoll:infra"

// providersDir is the directory for providers in the data directory.
const providersDir = "providers"

// maxRunDirLen is the maximum length of a directory with sockets below it; see
// provider.Config.
const maxRunDirLen = 70

// openProviders opens the provider registry, before there is an API.
func (s *Server) openProviders() (err error) {
	if s.language, err = reference.New(); err != nil {
		return err
	}
	user, err := s.cfg.providerUser()
	if err != nil {
		return err
	}
	dir := filepath.Join(s.cfg.DataDir, providersDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the directory for providers: %w", err)
	}
	if user != nil {
		if err := grantTraversal(s.cfg.DataDir, dir); err != nil {
			return err
		}
	}
	run, err := s.runDir(dir)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // the Registry has its own notation for it
	}
	s.providers, err = providers.New(providers.Config{
		Directory: dir, RunDirectory: run,
		Mirrors: s.cfg.ProviderMirrors, Development: s.cfg.AllowDevelopmentProviders, User: user,
		// Providers use the same proxies and CAs as the server for outgoing
		// connections.
		Inherit:         []string{"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"},
		Server:          host,
		Keeper:          s.cfg.ProviderKeeper,
		StoredResources: func(ctx context.Context, group string) ([]string, error) { return s.api.StoredResources(ctx, group) },
		Log:             s.cfg.Log, Clock: s.cfg.Clock,
	})
	if err != nil {
		return fmt.Errorf("open the provider registry: %w", err)
	}
	s.closers = append(s.closers, s.providers)
	return nil
}

// runDir returns the directory for the sockets of providers' processes: below the data
// directory if its path is short enough.
func (s *Server) runDir(dir string) (string, error) {
	run := filepath.Join(dir, "run")
	if len(run) <= maxRunDirLen {
		return run, nil
	}
	// The name is deterministic, so that the next server finds the directory again. It
	// removes files that a killed server left there, except those that its keepers
	// still need.
	sum := sha256.Sum256([]byte(dir))
	run = filepath.Join(os.TempDir(), "atoll-"+hex.EncodeToString(sum[:8]))
	if err := os.Mkdir(run, 0o700); err != nil && !isOwn(run) {
		if run, err = os.MkdirTemp("", "atoll-"); err != nil {
			return "", fmt.Errorf("create a directory for the sockets of providers: %w", err)
		}
	}
	s.closers = append(s.closers, tempRunDir(run))
	return run, nil
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

// infraClient returns the infrastructure controllers' client configuration. It has no
// rate limit, because the API has priority and fairness.
func (s *Server) infraClient() *rest.Config {
	config := s.api.ClientConfig(infraUser)
	config.QPS, config.Burst = -1, -1
	return config
}

// connectProviders connects the provider registry to the API, once there is one.
func (s *Server) connectProviders() error {
	config := s.infraClient()
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	s.providers.Connect(providers.Clients{Dynamic: objects, Metadata: meta})
	return nil
}

// runProviders installs the CRDs of infrastructure and watches Providers.
func (s *Server) runProviders(ctx context.Context) error {
	if !s.awaitAPI(ctx) {
		return nil
	}
	client, err := dynamic.NewForConfig(s.infraClient())
	if err != nil {
		return err
	}
	for {
		err := providers.InstallCRDs(ctx, client)
		if err == nil || ctx.Err() != nil {
			break
		}
		s.cfg.Log.Error("cannot install the infrastructure CRDs; retrying", "err", err)
		timer := s.cfg.Clock.NewTimer(time.Second)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return s.providers.Run(ctx)
}

// providerUser parses ProviderUser. It returns nil if that is empty.
func (c *Config) providerUser() (*provider.User, error) {
	if c.ProviderUser == "" {
		return nil, nil
	}
	user, group, ok := strings.Cut(c.ProviderUser, ":")
	uid, errUser := strconv.ParseUint(user, 10, 32)
	gid, errGroup := strconv.ParseUint(group, 10, 32)
	switch {
	case !ok || errUser != nil || errGroup != nil:
		return nil, fmt.Errorf("provider user %q is not numeric UID:GID: use a form such as 65534:65534", c.ProviderUser)
	case os.Geteuid() != 0:
		return nil, errors.New("provider user: only root can run programs as another user: start the server as root, or omit --provider-user")
	}
	return &provider.User{UID: uint32(uid), GID: uint32(gid)}, nil
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
			return fmt.Errorf("prepare to run providers as another user: only the owner of %s can traverse it: run chmod o+x on it, choose another --data-dir, or omit --provider-user", dir)
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
