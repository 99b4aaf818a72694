package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// JoinOptions configure Join.
type JoinOptions struct {
	// Name is the name of the Cluster.
	Name string
	// Server is the URL of Atoll's servers for the cluster's syncer. It defaults to the URL of
	// the current connection.
	Server string
	// Progress, if set, receives a sentence for each step.
	Progress func(string)
}

// Join registers a cluster in mode Pull, and returns the kubeconfig of its syncer for its view.
// It can be repeated: only the last kubeconfig stays valid.
func Join(ctx context.Context, atoll *rest.Config, o JoinOptions) (kubeconfig []byte, err error) {
	if err := fleet.RegisterPull(ctx, atoll, o.Name, o.Progress); err != nil {
		return nil, err
	}
	key, request, err := NewKey(o.Name)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", o.Name, err)
	}
	got, err := requestCredential(ctx, atoll, o.Name, CredentialRequest{Request: string(request)})
	if err != nil {
		return nil, fmt.Errorf("join %s: get a credential: %w", o.Name, err)
	}
	trust := rest.CopyConfig(atoll)
	if err := rest.LoadTLSFiles(trust); err != nil {
		return nil, fmt.Errorf("join %s: read the certificate authority of Atoll's servers: %w", o.Name, err)
	}
	server := o.Server
	if server == "" {
		server = atoll.Host
	}
	return Kubeconfig(strings.TrimSuffix(server, "/"), o.Name, trust.CAData, []byte(got.Certificate), key)
}

func requestCredential(ctx context.Context, atoll *rest.Config, cluster string, r CredentialRequest) (Credential, error) {
	var got Credential
	kube, err := kubernetes.NewForConfig(atoll)
	if err != nil {
		return got, fmt.Errorf("create a client for Atoll: %w", err)
	}
	body, err := json.Marshal(r)
	if err != nil {
		return got, err
	}
	answer, err := kube.Discovery().RESTClient().Post().AbsPath(v1alpha1.ViewsPath+cluster+credentialRest).
		SetHeader("Content-Type", "application/json").Body(body).DoRaw(ctx)
	if err != nil {
		return got, err
	}
	if err := json.Unmarshal(answer, &got); err != nil || got.Certificate == "" {
		return got, errors.New("the response is not a credential: are the server and this program of the same version?")
	}
	return got, nil
}
