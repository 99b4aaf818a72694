package server

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-dev/atoll/kv/sqlite"
)

// Collectors returns the metrics of a new server, for tests of their names.
func Collectors() []prometheus.Collector { return newMetrics().collectors() }

// InterceptRenames makes the server call intercept instead of a rename of a keyspace, which is do. Call it before Run.
func (s *Server) InterceptRenames(intercept func(do func() error) error) error {
	db, ok := s.datastore.Backend.(*sqlite.DB)
	if !ok {
		return errors.New("the datastore is no SQLite file")
	}
	s.datastore.Backend = interceptedRenames{db, intercept}
	return nil
}

type interceptedRenames struct {
	*sqlite.DB
	intercept func(do func() error) error
}

func (i interceptedRenames) Rename(ctx context.Context, from, to string) error {
	return i.intercept(func() error { return i.DB.Rename(ctx, from, to) })
}

// SettleFleets sets how long workspaces keep their fleets after their last Clusters are gone. Call it before Run.
func (s *Server) SettleFleets(after time.Duration) { s.tenants.fleets.settle = after }

// LimitFleets sets how many workspaces have running fleets. Call it before Run.
func (s *Server) LimitFleets(n int) { s.tenants.fleets.max = n }

// Name is the name of the server in leader elections.
func (s *Server) Name() string { return s.name }

// Awake returns the UIDs and paths of the open workspaces.
func (s *Server) Awake() []string { return s.tenants.pool.Keys() }

// EncryptionMetrics are the metrics of encryption at rest.
func (s *Server) EncryptionMetrics() prometheus.Collector { return s.metrics.encryption }
