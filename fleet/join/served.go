package join

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const (
	// startLimit is how long a server of Atoll may need to serve its types after it answers.
	startLimit = 5 * time.Second
	// answerLimit is how long it may need to answer: it waits for the caches of a new type.
	answerLimit = 30 * time.Second
)

// checkAtoll checks that a server is one of Atoll: it serves Clusters. The commonest mistake is
// a kubeconfig of another cluster.
func checkAtoll(ctx context.Context, config *rest.Config) error {
	own := rest.CopyConfig(config)
	own.QPS = -1 // its limiter would replace the cause by an error of its own
	dyn, err := dynamic.NewForConfig(own)
	if err != nil {
		return fmt.Errorf("make a client of Atoll: %w", err)
	}
	var last error
	begin := time.Now()
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, answerLimit, true, func(ctx context.Context) (bool, error) {
		_, err := dyn.Resource(v1alpha1.ClusterResource).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil && ctx.Err() != nil {
			return false, nil // only this attempt was ended: the last error has the cause
		}
		last = err
		switch {
		case err == nil:
			return true, nil
		case apierrors.IsNotFound(err) && time.Since(begin) < startLimit, apierrors.IsServiceUnavailable(err):
			return false, nil
		}
		return false, err
	})
	var host x509.HostnameError
	switch {
	case err == nil:
		return nil
	case errors.As(last, &host):
		return fmt.Errorf("the certificate of the server at %s is not valid for that name (%w): use one of its names in the kubeconfig, or start the servers of Atoll with --tls-name %s", config.Host, host, host.Host)
	case ctx.Err() != nil:
		return ctx.Err()
	case apierrors.IsNotFound(last):
		return fmt.Errorf("the server at %s is not an Atoll server, because it does not serve clusters.%s: set --atoll-kubeconfig to the admin.kubeconfig of one", config.Host, v1alpha1.Group)
	case apierrors.IsUnauthorized(last):
		return fmt.Errorf("Atoll at %s does not accept the credentials in its kubeconfig: check that they have not expired", config.Host)
	case last == nil:
		return errors.New("Atoll does not answer: check its address in --atoll-kubeconfig, and the network")
	}
	return fmt.Errorf("list the clusters of Atoll at %s: %w", config.Host, last)
}
