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

// infraUser is whom the audit log names for what is done about infrastructure.
const infraUser = "atoll:infra"

// providersDir is what of the data directory is about providers.
const providersDir = "providers"

// longestRunDir is what a directory with sockets below it may have; see provider.Config.
const longestRunDir = 70

// openProviders opens what is known of providers, before there is an API.
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
		return fmt.Errorf("prepare the directory of providers: %w", err)
	}
	if user != nil {
		if err := letThrough(s.cfg.DataDir, dir); err != nil {
			return err
		}
	}
	run, err := s.runDir(dir)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // the Registry has a word for it
	}
	s.providers, err = providers.New(providers.Config{
		Directory: dir, RunDirectory: run,
		Mirrors: s.cfg.ProviderMirrors, Development: s.cfg.AllowDevelopmentProviders, User: user,
		// How to get out of here is the same for a provider as for the server.
		Inherit:         []string{"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"},
		Server:          host,
		Keeper:          s.cfg.ProviderKeeper,
		StoredResources: func(ctx context.Context, group string) ([]string, error) { return s.api.StoredResources(ctx, group) },
		Log:             s.cfg.Log, Clock: s.cfg.Clock,
	})
	if err != nil {
		return fmt.Errorf("open what is known of providers: %w", err)
	}
	s.closers = append(s.closers, s.providers)
	return nil
}

// runDir is where providers' processes have their sockets: in the data directory if its path is short enough.
func (s *Server) runDir(dir string) (string, error) {
	run := filepath.Join(dir, "run")
	if len(run) <= longestRunDir {
		return run, nil
	}
	// By a name that the next server finds again: what this one leaves there if it is killed is removed then, and what its keepers
	// still need is not.
	sum := sha256.Sum256([]byte(dir))
	run = filepath.Join(os.TempDir(), "atoll-"+hex.EncodeToString(sum[:8]))
	if err := os.Mkdir(run, 0o700); err != nil && !isOwn(run) {
		if run, err = os.MkdirTemp("", "atoll-"); err != nil {
			return "", fmt.Errorf("make a directory for providers' processes: %w", err)
		}
	}
	s.closers = append(s.closers, emptied(run))
	return run, nil
}

// isOwn tells whether it is a directory of whoever runs the server, and no link to one: others can write where it is.
func isOwn(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// emptied is a directory that goes when it is closed, unless a keeper still works there.
type emptied string

func (e emptied) Close() error {
	if err := os.Remove(string(e)); err != nil && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// infraClient is how infrastructure's controllers reach the API, which has priority and fairness of its own.
func (s *Server) infraClient() *rest.Config {
	config := s.api.ClientConfig(infraUser)
	config.QPS, config.Burst = -1, -1
	return config
}

// connectProviders says how the API is reached, once there is one.
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

// runProviders installs the types of infrastructure and follows Providers.
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
		s.cfg.Log.Error("the types of infrastructure cannot be installed; trying again", "error", err)
		timer := s.cfg.Clock.NewTimer(time.Second)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return s.providers.Run(ctx)
}

// providerUser reads ProviderUser, nil if there is none.
func (c *Config) providerUser() (*provider.User, error) {
	if c.ProviderUser == "" {
		return nil, nil
	}
	user, group, ok := strings.Cut(c.ProviderUser, ":")
	uid, errUser := strconv.ParseUint(user, 10, 32)
	gid, errGroup := strconv.ParseUint(group, 10, 32)
	switch {
	case !ok || errUser != nil || errGroup != nil:
		return nil, fmt.Errorf("provider user %q is not of the form UID:GID, in numbers, such as 65534:65534", c.ProviderUser)
	case os.Geteuid() != 0:
		return nil, errors.New("provider user: only root can run programs as somebody else: start the server as root, or leave --provider-user out")
	}
	return &provider.User{UID: uint32(uid), GID: uint32(gid)}, nil
}

// letThrough lets another user get to the providers' directory and to nothing else: it may pass through the
// data directory, in which all else becomes its owner's alone.
func letThrough(dataDir, providersDir string) error {
	for dir := filepath.Dir(dataDir); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("let providers run as another user: %w", err)
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("let providers run as another user: nobody but its owner gets through %s: allow that (chmod o+x), choose another --data-dir, or leave --provider-user out", dir)
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	entries, err := os.ReadDir(dataDir)
	if err != nil {
		return fmt.Errorf("let providers run as another user: %w", err)
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
			return fmt.Errorf("let providers run as another user: %w", err)
		}
	}
	return errors.Join(os.Chmod(providersDir, 0o711), os.Chmod(dataDir, 0o711))
}
