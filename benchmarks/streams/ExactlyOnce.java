// Copies each ID of a topic once into another one, with exactly_once_v2: the contender of benchmarks/exactly_once.py.
//
//     java -cp 'DIR/*' benchmarks/streams/ExactlyOnce.java BOOTSTRAP IN OUT APPLICATION_ID STATE_DIR

import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

class ExactlyOnce {
    static final class Deduplicating implements Processor<byte[], byte[], byte[], byte[]> {
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<byte[], byte[]> seen;

        @Override
        public void init(ProcessorContext<byte[], byte[]> context) {
            this.context = context;
            this.seen = context.getStateStore("seen");
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            Header id = record.headers().lastHeader("dedup-id");
            if (id == null || seen.get(id.value()) == null) {
                if (id != null) {
                    seen.put(id.value(), Long.toString(record.timestamp()).getBytes(StandardCharsets.UTF_8));
                }
                context.forward(record);
            }
        }
    }

    public static void main(String[] given) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, given[3]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, given[4]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        // A process that is started again gets its partitions at once.
        settings.put(StreamsConfig.mainConsumerPrefix("group.instance.id"), given[3]);
        Topology topology = new Topology();
        topology.addSource("in", Serdes.ByteArray().deserializer(), Serdes.ByteArray().deserializer(), given[1]);
        topology.addProcessor("once", Deduplicating::new, "in");
        topology.addStateStore(
            Stores.keyValueStoreBuilder(
                Stores.persistentKeyValueStore("seen"), Serdes.ByteArray(), Serdes.ByteArray()),
            "once");
        topology.addSink(
            "out", given[2], Serdes.ByteArray().serializer(), Serdes.ByteArray().serializer(), "once");
        KafkaStreams streams = new KafkaStreams(topology, settings);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
