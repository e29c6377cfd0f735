// Package crds names the types whose CustomResourceDefinitions controller-gen writes (../build.sh): the Prometheus
// operator publishes its Go types as a module, but not its generated CRDs.
package crds

import _ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
