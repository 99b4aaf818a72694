package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// RequestKubeconfig returns a new kubeconfig for the view of a cluster in mode Pull. Only the last
// one of a cluster is valid. server is the URL of Atoll's servers for the cluster's syncer; it
// defaults to that of the current connection.
func RequestKubeconfig(ctx context.Context, atoll *rest.Config, cluster, server string) ([]byte, error) {
	key, request, err := NewKey(cluster)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", cluster, err)
	}
	got, err := requestCredential(ctx, atoll, cluster, CredentialRequest{Request: string(request)})
	if err != nil {
		return nil, fmt.Errorf("join %s: get a credential: %w", cluster, err)
	}
	server, authority, err := serversOf(atoll, cluster, server)
	if err != nil {
		return nil, err
	}
	return Kubeconfig(server, cluster, authority, []byte(got.Certificate), key)
}

// BootstrapKubeconfig returns a kubeconfig for the view of a cluster with a bootstrap token, with which its syncer requests
// a certificate. server is that of RequestKubeconfig.
func BootstrapKubeconfig(atoll *rest.Config, cluster, server, token string) ([]byte, error) {
	server, authority, err := serversOf(atoll, cluster, server)
	if err != nil {
		return nil, err
	}
	return kubeconfigOf(server, cluster, authority, &clientcmdapi.AuthInfo{Token: token})
}

// serversOf returns the URL of Atoll's servers for a cluster's syncer, and the authority of their certificates.
func serversOf(atoll *rest.Config, cluster, server string) (url string, authority []byte, err error) {
	trust := rest.CopyConfig(atoll)
	if err := rest.LoadTLSFiles(trust); err != nil {
		return "", nil, fmt.Errorf("join %s: read the certificate authority of Atoll's servers: %w", cluster, err)
	}
	if server == "" {
		server = atoll.Host
	}
	return strings.TrimSuffix(server, "/"), trust.CAData, nil
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
