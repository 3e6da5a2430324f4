# needs: java javac
version() { java -version 2>&1 | head -1; }
try() {
	cat >Main.java <<'JAVA'
import java.net.*; import java.net.http.*; import java.nio.file.*; import java.util.stream.*;
public class Main {
    public static void main(String[] args) throws Exception {
        int sum = IntStream.rangeClosed(1, 1000).parallel().sum();
        try (ServerSocket server = new ServerSocket(0, 5, InetAddress.getLoopbackAddress())) {
            Thread t = new Thread(() -> { try (Socket s = server.accept()) { s.getOutputStream().write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".getBytes()); } catch (Exception e) { throw new RuntimeException(e); } });
            t.start();
            String body = HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + server.getLocalPort() + "/")).build(), HttpResponse.BodyHandlers.ofString()).body();
            t.join();
            Path file = Files.createTempFile("x", ".txt");
            System.out.println(sum + " " + body + " " + System.getProperty("user.name") + " " + Files.exists(file));
        }
        System.exit(0);
    }
}
JAVA
	javac Main.java && equal "$(java Main)" "500500 ok user true"
}
