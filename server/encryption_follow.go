package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/kv"
)

// defaultEncryption returns what the API server encrypts with these keys.
func (s *Server) defaultEncryption() (*apiserver.DefaultEncryption, error) {
	path := s.pki.file(encryptionKeys)
	read := func(context.Context) ([]apiserver.EncryptionKey, error) {
		content, err := os.ReadFile(path)
		if err != nil && !(s.cfg.ReadOnly && errors.Is(err, fs.ErrNotExist)) {
			return nil, fmt.Errorf("read the keys of encryption at rest: %w", err)
		}
		keys, err := parseEncryptionKeys(content)
		if err != nil {
			return nil, err
		}
		out := make([]apiserver.EncryptionKey, len(keys))
		for i, k := range keys {
			out[i] = apiserver.EncryptionKey{Name: k.name, Secret: k.secret}
		}
		return out, nil
	}
	out := &apiserver.DefaultEncryption{
		Resources: encryptedResources(), KeyFile: path, Metrics: s.metrics.encryption,
		Reload: func(ctx context.Context) ([]apiserver.EncryptionKey, error) {
			if s.datastore.Shared() {
				if err := s.refreshKeys(ctx); err != nil {
					return nil, err
				}
			}
			return read(ctx)
		},
	}
	if !s.cfg.ReadOnly {
		out.Others, out.Recheck = s.encryptWorkspaces, min(encryptionRecheck, cmp.Or(s.cfg.HistoryRetention, defaultRetention))
	}
	var err error
	out.Keys, err = read(context.Background())
	return out, err
}

// refreshKeys takes over the keys of encryption that servers share now. The others are used from the next start.
func (s *Server) refreshKeys(ctx context.Context) error {
	table, err := s.datastore.Open(ctx, systemKeyspace)
	if err != nil {
		return err
	}
	res, _, err := table.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte(sharedKey)}}, false)
	held, err := decodeSealed(res, err)
	if err != nil || held == nil || held.revision == s.sharedRevision.Load() {
		return err
	}
	file := cmp.Or(s.cfg.TokenFile, filepath.Join(s.cfg.DataDir, tokenFile))
	token, err := tokenIn(file)
	if err != nil {
		return err
	}
	files, err := held.open(token)
	if err != nil {
		return fmt.Errorf("%w: copy the new token to %s", err, file)
	}
	if content := files[encryptionKeys]; len(content) > 0 {
		if err := writeIfChanged(s.pki.file(encryptionKeys), content); err != nil {
			return err
		}
	}
	s.sharedRevision.Store(held.revision)
	return nil
}

// encryptionRecheck is how often the leading server looks whether workspaces have objects that are not encrypted with the present key.
const encryptionRecheck = 5 * time.Minute

// encryptionRefresh is how soon a server encrypts with a new key.
const encryptionRefresh = 30 * time.Second

// followEncryptionKeys makes this server encrypt with a new key while it runs, so that
// former ones can be forgotten.
func (s *Server) followEncryptionKeys(ctx context.Context) error {
	ticker := s.cfg.Clock.NewTicker(encryptionRefresh)
	defer ticker.Stop()
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		switch err := s.api.ReloadEncryptionKeys(ctx); {
		case ctx.Err() != nil:
		case err == nil:
			logged = ""
		case err.Error() != logged:
			logged = err.Error()
			s.cfg.Log.Warn("cannot read the keys of encryption at rest again; trying again later", "err", err)
		}
	}
}
