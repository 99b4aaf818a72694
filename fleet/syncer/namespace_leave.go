package syncer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// RemoveNamespaces deletes the empty namespaces that the syncers of a cluster created there. It is called when the cluster
// leaves with its objects removed: objects that left earlier, as in a drain, left their namespaces behind. A namespace
// with objects stays, and so does one that is not known to be empty.
func RemoveNamespaces(ctx context.Context, log *slog.Logger, cluster string, cfg *rest.Config) error {
	s, err := newSyncer(nil, Options{Cluster: cluster, Log: log}, cfg)
	if err != nil {
		return err
	}
	defer s.queue.ShutDown()
	err = s.eachManagedNamespace(ctx, func(ns *metav1.PartialObjectMetadata) error {
		if ns.Annotations[v1alpha1.ClusterAnnotation] != cluster {
			return nil
		}
		err := s.member.deleteEmptyNamespace(ctx, ns.Name)
		if unlisted := (*unlistedError)(nil); errors.As(err, &unlisted) {
			s.log.Warn("a namespace stays in a cluster that leaves", "namespace", ns.Name, "error", err)
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("remove the namespaces of cluster %s: %w", cluster, err)
	}
	return nil
}
