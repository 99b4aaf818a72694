package server

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/fleet/quota"
	"github.com/atoll-dev/atoll/fleet/quotas"
)

// quotaUser is the user in the audit log for the gate of FleetQuotas.
const quotaUser = "atoll:quotas"

// apiServerUser is the API server itself. It writes before it answers requests.
const apiServerUser = "system:apiserver"

// quotaCheck refuses writes that exceed a FleetQuota. Atoll's own controllers are not refused: what
// they write was decided by others before, and is counted.
func (s *Server) quotaCheck() *apiserver.WriteCheck {
	return &apiserver.WriteCheck{
		Concerns: func(kind schema.GroupKind, namespace string) bool { return s.quotas.Concerns(kind, namespace) },
		Check: func(ctx context.Context, w *apiserver.ObjectWrite) error {
			if strings.HasPrefix(w.User.Name, "atoll:") || w.User.Name == apiServerUser {
				return nil
			}
			err := s.quotas.Check(ctx, quotas.Write{Kind: w.Kind, Resource: w.Resource, Namespace: w.Namespace, Name: w.Name,
				Old: w.Old, Object: w.Object, Replicas: w.Replicas, DryRun: w.DryRun})
			switch {
			case err == nil || errors.Is(err, quotas.ErrRefused):
				return err
			case errors.Is(err, quota.ErrNotCounted):
				return apierrors.NewTooManyRequests(err.Error(), 1) // clients try again
			}
			return apierrors.NewInternalError(fmt.Errorf("check the FleetQuotas of namespace %s: %w", w.Namespace, err))
		},
	}
}

// newGate returns the gate of quotas, once the API is available.
func (s *Server) newGate() (*quotas.Gate, error) {
	config := s.api.ClientConfig(quotaUser)
	config.QPS, config.Burst = -1, -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return quotas.NewGate(client, s.cfg.Clock), nil
}

func (s *Server) runGate(ctx context.Context) error {
	select {
	case <-s.api.Ready(): // then the types are there
		return s.quotas.Run(ctx)
	case <-ctx.Done():
		return nil
	}
}
