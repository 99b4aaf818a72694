package apiserver

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// kubernetesService is the Service of its own API server that every cluster has in the
// namespace default. Charts and clients look for it. It is never placed: in a member
// the name means the member's API server.
const kubernetesService = "kubernetes"

// kubernetesService creates that Service, and creates it again if it is deleted.
func (l *leadership) kubernetesService(context.Context) (func(context.Context), error) {
	port, err := securePort(l.config.Host)
	if err != nil {
		return nil, err
	}
	informer := coreinformers.NewFilteredServiceInformer(l.client, metav1.NamespaceDefault, 0, nil, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", kubernetesService).String()
	})
	missing := make(chan struct{}, 1)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) {
		select {
		case missing <- struct{}{}:
		default:
		}
	}}); err != nil {
		return nil, fmt.Errorf("watch the Service %s: %w", kubernetesService, err)
	}
	return func(ctx context.Context) {
		both(ctx, informer.RunWithContext, func(ctx context.Context) {
			if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
				return
			}
			if len(informer.GetStore().ListKeys()) == 0 {
				l.createKubernetesService(ctx, port)
			}
			for {
				select {
				case <-missing:
					l.createKubernetesService(ctx, port)
				case <-ctx.Done():
					return
				}
			}
		})
	}, nil
}

// createKubernetesService retries until the Service exists or ctx ends. At the first
// start of a workspace the namespace default does not exist yet.
func (l *leadership) createKubernetesService(ctx context.Context, port int32) {
	service := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: kubernetesService, Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"}},
		Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Name: "https", Protocol: v1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt32(port)}}},
	}
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 10, Cap: 10 * time.Second}
	_ = backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		_, err := l.client.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, service, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			return true, nil
		}
		klog.FromContext(ctx).V(2).Info("create the Service of the API server failed; retrying", "err", err)
		return false, nil
	})
}

func securePort(host string) (int32, error) {
	address, err := url.Parse(host)
	if err != nil {
		return 0, fmt.Errorf("parse the server's own address: %w", err)
	}
	port, err := strconv.ParseUint(address.Port(), 10, 16)
	if err != nil {
		return 0, fmt.Errorf("parse the port of the server's own address %s: %w", host, err)
	}
	return int32(port), nil
}
