package server

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/plans"
	"github.com/atoll-dev/atoll/infra/reference"
)

// infraUser is whom the audit log names for what plans and applies do.
const infraUser = "atoll:infra"

// runPlans runs plans and applies, once the API that they talk to is ready. The keyspace is the one that the
// API stores in, decode what reads its values; elected run beside in the server that leads.
func (s *Server) runPlans(ctx context.Context, keyspace *clientv3.Client, decode plans.Decode, providers infra.Providers, types plans.Types, elected ...func(context.Context) error) error {
	if !s.awaitAPI(ctx) {
		return nil
	}
	language, err := reference.New()
	if err != nil {
		return fmt.Errorf("prepare the language of references: %w", err)
	}
	p, err := plans.New(plans.Config{
		REST:      s.api.ClientConfig(infraUser),
		Keyspace:  keyspace,
		Decode:    decode,
		Providers: providers,
		Types:     types,
		Language:  language,
		Elected:   elected,
		Log:       s.cfg.Log,
		Clock:     s.cfg.Clock,
		Identity:  s.name,
	})
	if err != nil {
		return fmt.Errorf("prepare plans and applies: %w", err)
	}
	return p.Run(ctx)
}
