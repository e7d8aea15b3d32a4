package kafkatest

import (
	"sync"

	"github.com/oncemill/oncemill/internal/testserver"
)

// kafkaVersion is the Apache Kafka that tests run. It needs Java 17 or newer.
const kafkaVersion = "4.3.1"

// kafkaJars returns the folder of the broker's jars, and of what writes its log (SLF4J 1.7 to Log4j 2, in the version
// of the broker's). Asked again in the same process, it gives the same answer.
var kafkaJars = sync.OnceValues(func() (string, error) {
	return testserver.Jars("kafka-"+kafkaVersion, "org.apache.kafka:kafka_2.13:"+kafkaVersion,
		"org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
})
